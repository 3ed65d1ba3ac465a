"""Products of two stacks of matrices.

    batch_matmul  a[..., m, k]  b[..., k, n] -> [..., m, n]

The leading dims are alike. `transpose_a` says that a is stored as [..., k, m], `transpose_b` that b is [..., n, k]; the
gradients are again such products.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    LETTERS,
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    int_attr,
    linear_in,
    shapes,
    split_letters,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.traits import Gemm, PrecisionClass, Product, RecomputeClass
from strategy.sbp.tensor import Shape, TensorSpec


def _flags(attrs: Attrs) -> tuple[bool, bool]:
    return bool(int_attr(attrs, "transpose_a")), bool(int_attr(attrs, "transpose_b"))


def _sides(inputs: Specs, attrs: Attrs) -> tuple[Shape, Shape]:
    """(m, k) of a and (k, n) of b."""
    a, b = (spec.shape[-2:] for spec in inputs)
    flip_a, flip_b = _flags(attrs)
    return (a[::-1] if flip_a else a), (b[::-1] if flip_b else b)


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    a, b = inputs
    expected = "a[..., m, k], b[..., k, n] of one dtype and with the same leading dims"
    stacks = len(a.shape) == len(b.shape) >= 3 and a.shape[:-2] == b.shape[:-2] and a.dtype == b.dtype
    expect(stacks, "batch_matmul shapes do not compose", got=shapes(inputs), expected=expected)
    (m, k), (same_k, n) = _sides(inputs, attrs)
    expect(k == same_k, "batch_matmul shapes do not compose", got=(shapes(inputs), dict(attrs)), expected=expected)
    return (TensorSpec((*a.shape[:-2], m, n), a.dtype),)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    lead = LETTERS[: len(inputs[0].shape) - 2]
    flip_a, flip_b = _flags(attrs)
    a, b = "km" if flip_a else "mk", "nk" if flip_b else "kn"
    return [*split_letters([lead + a, lead + b], [lead + "mn"]), linear_in([0], 2), linear_in([1], 2)]


def _run(call: Call) -> None:
    flip_a, flip_b = _flags(call.attrs)
    a, b = call.inputs
    call.xp.matmul(_flipped(a) if flip_a else a, _flipped(b) if flip_b else b, out=call.outputs[0])


def _flipped(stack: Array) -> Array:
    return stack.swapaxes(-1, -2)


def _gradient(builder: GradientBuilder) -> None:
    """Of c = a b: da = dc b^T and db = a^T dc, each transposed where the operand is stored so."""
    (a, b), (flip_a, flip_b), dc = builder.op.inputs, _flags(builder.op.attrs), builder.output_gradient()
    if builder.wants(0):
        terms = ((b, dc), flip_b, True) if flip_a else ((dc, b), False, not flip_b)
        builder.give(0, _emit(builder, "da", *terms))
    if builder.wants(1):
        terms = ((dc, a), True, flip_a) if flip_b else ((a, dc), not flip_a, False)
        builder.give(1, _emit(builder, "db", *terms))


def _emit(builder: GradientBuilder, label: str, inputs: tuple[str, str], flip_a: bool, flip_b: bool) -> str:
    return builder.emit(label, "batch_matmul", inputs, {"transpose_a": int(flip_a), "transpose_b": int(flip_b)})


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * outputs[0].size * _sides(inputs, attrs)[0][1]


def _example(a: Shape, b: Shape, transpose_a: int, transpose_b: int) -> Example:
    return Example((TensorSpec(a), TensorSpec(b)), attrs={"transpose_a": transpose_a, "transpose_b": transpose_b})


_EXAMPLES = (
    _example((4, 5, 7), (4, 7, 4), 0, 0),
    _example((5, 4, 7), (5, 8, 7), 0, 1),
    _example((7, 4, 5), (7, 4, 8), 1, 0),
    _example((4, 5, 7, 4), (4, 5, 5, 7), 1, 1),
)

OPS = (
    OpDef(
        "batch_matmul",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        cost=Product(Gemm.BATCHED, batch_dims=True),
        precision=PrecisionClass.HALF,
        recompute=RecomputeClass.SCORES,
        expert_weights=1,
        examples=_EXAMPLES,
    ),
)
