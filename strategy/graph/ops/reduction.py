"""Reductions over some dims: `reduce_sum`, `reduce_mean`, `reduce_max`, `reduce_min`; `square_sum`, `accumulate`.

Attributes: `axes`, the dims that go; `keepdims`, whether they stay as dims of one. A reduced dim that is split leaves
terms: sums of a sum, maxima of a maximum. A mean divides by the logical length, which a rank cannot see from its
piece: it may be split over the reduced dims where the attribute `count` states it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    LETTERS,
    MAX,
    MIN,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    int_attr,
    ints_attr,
    linear_in,
    shapes,
    split_letters,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import ScratchSizes, sized
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import P, Partial, Split
from strategy.sbp.tensor import Shape, TensorSpec

_ONE = "-"
_TERMS: Mapping[str, Partial] = {"reduce_sum": P, "reduce_mean": P, "reduce_max": MAX, "reduce_min": MIN}


def _kept(shape: Shape, attrs: Attrs) -> Shape:
    """The shape with reduced dims of one."""
    axes = ints_attr(attrs, "axes")
    return tuple(1 if d in axes else size for d, size in enumerate(shape))


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    shape, axes = inputs[0].shape, ints_attr(attrs, "axes")
    legal = len(set(axes)) == len(axes) and all(0 <= d < len(shape) for d in axes)
    expect(legal, "the reduced dims are not there", got=axes, expected=f"different dims of {shape}")
    lengths = math.prod(shape[d] for d in axes)
    stated = attrs.get("count", lengths)
    expect(stated == lengths, "the mean is over another number of elements", got=stated, expected=str(lengths))
    if int_attr(attrs, "keepdims"):
        return (TensorSpec(_kept(shape, attrs), inputs[0].dtype),)
    return (TensorSpec(tuple(size for d, size in enumerate(shape) if d not in axes), inputs[0].dtype),)


def _letters(dims: int, attrs: Attrs) -> tuple[str, str]:
    """Letters of the operand and of the result."""
    axes, letters = ints_attr(attrs, "axes"), LETTERS[:dims]
    gone = _ONE if int_attr(attrs, "keepdims") else ""
    return letters, "".join(gone if d in axes else letter for d, letter in enumerate(letters))


def _signatures(kind: str) -> Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]:
    term = _TERMS[kind]

    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        operand, result = _letters(len(inputs[0].shape), attrs)
        whole_only = "".join(set(operand) - set(result)) if kind == "reduce_mean" and "count" not in attrs else ""
        found = split_letters([operand], [result], skip=_ONE + whole_only)
        found = [AxisSignature(s.inputs, tuple(term if out == P else out for out in s.outputs)) for s in found]
        return [*found, AxisSignature((term,), (term,))]

    return signatures


def _run_sum(call: Call) -> None:
    xp, x, out = call.xp, call.inputs[0], call.outputs[0]
    axes = ints_attr(call.attrs, "axes")
    if x.dtype.kind == "f" and _are_leading(axes, x.ndim):
        rows = x.reshape(-1, out.size)
        count = rows.shape[0]
        ones = call.workspace.constant("ones", (1, count), x.dtype, lambda: xp.ones((1, count), x.dtype))
        xp.matmul(ones, rows, out=out.reshape(1, -1))  # a product with ones sums faster than a strided reduction
    else:
        out[...] = x.sum(axis=axes).reshape(out.shape)


def _are_leading(axes: Shape, dims: int) -> bool:
    """Whether axes are the first of all dims, and some are left."""
    return bool(axes) and sorted(axes) == list(range(len(axes))) and len(axes) < dims


def _scratch_sum(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """Ones, where leading dims are summed."""
    x, axes = inputs[0], ints_attr(attrs, "axes")
    leading = x.dtype.is_float and _are_leading(axes, len(x.shape))
    return ScratchSizes(kept=sized(x.dtype.nbytes, tuple(x.shape[dim] for dim in axes)) if leading else ())


def _run_mean(call: Call) -> None:
    _run_sum(call)
    x = call.inputs[0]
    given = "count" in call.attrs
    count = int_attr(call.attrs, "count") if given else math.prod(x.shape[d] for d in ints_attr(call.attrs, "axes"))
    call.outputs[0][...] *= 1.0 / count


def _run_max(call: Call) -> None:
    out = call.outputs[0]
    out[...] = call.inputs[0].max(axis=ints_attr(call.attrs, "axes")).reshape(out.shape)


def _run_min(call: Call) -> None:
    out = call.outputs[0]
    out[...] = call.inputs[0].min(axis=ints_attr(call.attrs, "axes")).reshape(out.shape)


def _spread(builder: GradientBuilder, grad: str) -> None:
    """Give the gradient of the result to every element that was summed."""
    (x,) = builder.specs(builder.op.inputs)
    kept = _kept(x.shape, builder.op.attrs)
    if builder.specs((grad,))[0].shape != kept:
        grad = builder.emit("dx_kept", "reshape", (grad,), {"shape": kept})
    if kept != x.shape:
        grad = builder.emit("dx", "expand", (grad,), {"shape": x.shape})
    builder.give(0, grad)


def _gradient_sum(builder: GradientBuilder) -> None:
    if builder.wants(0):
        _spread(builder, builder.output_gradient())


def _gradient_mean(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs)
        share = 1.0 / math.prod(x.shape[d] for d in ints_attr(builder.op.attrs, "axes"))
        _spread(builder, builder.emit("share", "scale", (builder.output_gradient(),), {"factor": share}))


def _gradient_winner(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,), (out,) = builder.op.inputs, builder.op.outputs
        attrs = {key: builder.op.attrs[key] for key in ("axes", "keepdims")}
        builder.give(0, builder.emit("dx", "reduce_winner_grad", (x, out, builder.output_gradient()), attrs))


def _infer_winner(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, out, grad = inputs
    (result,) = _infer((x,), (), attrs)
    expect(out == grad == result, "operands differ", got=shapes(inputs), expected="x, its extremum and its gradient")
    return (x,)


def _signatures_winner(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    operand, result = _letters(len(inputs[0].shape), attrs)
    return [*split_letters([operand, result, result], [operand], skip=_ONE), linear_in([2], 3)]


def _run_winner(call: Call) -> None:
    """The gradient to the element that is the extremum (to each of them, where several are)."""
    (x, out, grad), dx = call.inputs, call.outputs[0]
    kept = _kept(x.shape, call.attrs)
    call.xp.multiply(x == out.reshape(kept), grad.reshape(kept), out=dx)


def _infer_square_sum(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec((), inputs[0].dtype),)


def _signatures_square_sum(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d),), (P,)) for d in range(len(inputs[0].shape))]


def _run_square_sum(call: Call) -> None:
    flat = call.inputs[0].reshape(-1)
    call.outputs[0][...] = call.xp.dot(flat, flat)


def _gradient_square_sum(builder: GradientBuilder) -> None:
    if builder.wants(0):
        twice = builder.emit("twice", "scale", (builder.output_gradient(),), {"factor": 2.0})
        builder.give(0, builder.emit("dx", "mul", (builder.op.inputs[0], twice)))


def _infer_first(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _signatures_accumulate(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 1), linear_in([0], 1)]


def _run_accumulate(call: Call) -> None:
    total = call.outputs[0]
    if call.first_of_piece:
        total[...] = call.inputs[0]
    else:
        total += call.inputs[0]


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size


def _flop_twice(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size


_SQUARE, _CUBE = TensorSpec((7, 5)), TensorSpec((4, 6, 5))
_CHOICES: tuple[tuple[TensorSpec, tuple[int, ...], int], ...] = (
    (_SQUARE, (0,), 0),
    (_SQUARE, (1,), 1),
    (_CUBE, (0, 1), 0),
    (_CUBE, (1,), 0),
    (_CUBE, (0, 2), 1),
    (_SQUARE, (0, 1), 0),
)
_EXAMPLES = tuple(Example((spec,), attrs={"axes": axes, "keepdims": keep}) for spec, axes, keep in _CHOICES)
_COUNTED = (
    Example((_SQUARE,), attrs={"axes": (0,), "keepdims": 0, "count": 7}),
    Example((_CUBE,), attrs={"axes": (0, 2), "keepdims": 1, "count": 20}),
)
_WINNER_EXAMPLES = (
    Example(
        (_SQUARE, TensorSpec((5,)), TensorSpec((5,))),
        attrs={"axes": (0,), "keepdims": 0},
        derive={1: lambda drawn: drawn[0].max(axis=0)},
    ),
    Example(
        (_CUBE, TensorSpec((4, 1, 5)), TensorSpec((4, 1, 5))),
        attrs={"axes": (1,), "keepdims": 1},
        derive={1: lambda drawn: drawn[0].min(axis=1, keepdims=True)},
    ),
)

OPS = (
    OpDef(
        "reduce_sum",
        _infer,
        _flop,
        _signatures("reduce_sum"),
        _run_sum,
        _gradient_sum,
        precision=PrecisionClass.SINGLE,
        scratch=_scratch_sum,
        examples=_EXAMPLES,
    ),
    OpDef(
        "reduce_mean",
        _infer,
        _flop,
        _signatures("reduce_mean"),
        _run_mean,
        _gradient_mean,
        precision=PrecisionClass.SINGLE,
        scratch=_scratch_sum,
        examples=(*_EXAMPLES, *_COUNTED),
    ),
    OpDef(
        "reduce_max",
        _infer,
        _flop,
        _signatures("reduce_max"),
        _run_max,
        _gradient_winner,
        precision=PrecisionClass.SINGLE,
        examples=_EXAMPLES,
    ),
    OpDef(
        "reduce_min",
        _infer,
        _flop,
        _signatures("reduce_min"),
        _run_min,
        _gradient_winner,
        precision=PrecisionClass.SINGLE,
        examples=_EXAMPLES,
    ),
    OpDef("reduce_winner_grad", _infer_winner, _flop_twice, _signatures_winner, _run_winner, examples=_WINNER_EXAMPLES),
    OpDef(
        "square_sum",
        _infer_square_sum,
        _flop_twice,
        _signatures_square_sum,
        _run_square_sum,
        _gradient_square_sum,
        precision=PrecisionClass.SINGLE,
        examples=(Example((_SQUARE,)), Example((_CUBE,)), Example((TensorSpec(()),))),
    ),
    OpDef(
        "accumulate",
        _infer_first,
        _flop,
        _signatures_accumulate,
        _run_accumulate,
        accumulates=True,
        precision=PrecisionClass.SINGLE,
        examples=(Example((_SQUARE,)), Example((TensorSpec(()),))),
    ),
)
