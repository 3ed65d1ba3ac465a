"""What softmax cross-entropy is composed of (`strategy.nn.losses` composes it).

sum_exp        logits[..., v], top[...]                 -> sum over v of exp(logits - top)
cross_entropy  logits[..., v], labels[...], lse[...]    -> loss[], count[]

The classes may be split: a rank that holds part of them adds its terms of the sum, and the rank that holds a label's
class counts that row's loss. Sums, not means: the mean over all micro-batches and ranks is the reduced sum over the
reduced count, whatever the layout; a mean of means is not. Gradients are divided by the count once, before clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import (
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    float_attr,
    int_attr,
    linear_in,
    shapes,
)
from strategy.graph.ops.cache_blocks import by_rows, on_operands
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import DType, TensorSpec


def rows_of(inputs: Specs) -> range:
    """The dims before the classes."""
    return range(len(inputs[0].shape) - 1)


def as_rows(array: Array) -> Array:
    """[..., v] -> [rows, v], the same memory."""
    return array.reshape(-1, array.shape[-1])


def _infer_sum_exp(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    logits, top = inputs
    composes = len(logits.shape) > 0 and top == TensorSpec(logits.shape[:-1], logits.dtype)
    expect(composes, "sum_exp shapes do not compose", got=shapes(inputs), expected="logits[..., v], top[...]")
    return (top,)


def _signatures_sum_exp(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """The sum falls as `top` rises, yet terms of `top` are not offered: the exponential of a wrong top overflows."""
    rows = [AxisSignature((Split(d),) * 2, (Split(d),)) for d in rows_of(inputs)]
    return [*rows, AxisSignature((Split(len(rows)), B), (P,))]


@by_rows("xs", "s", on_operands(row_kernels.sum_exp))
def _run_sum_exp(call: Call) -> None:
    xp, (logits, top), out = call.xp, call.inputs, call.outputs[0]
    shifted = call.workspace.get("shifted", logits.shape, logits.dtype)
    xp.subtract(logits, top[..., None], out=shifted)
    xp.exp(shifted, out=shifted)
    out[...] = shifted.sum(axis=-1)


def _gradient_sum_exp(builder: GradientBuilder) -> None:
    logits, top = builder.op.inputs
    grad = builder.output_gradient()
    if builder.wants(0):
        builder.give(0, builder.emit("dlogits", "sum_exp_grad", (logits, top, grad)))
    if builder.wants(1):
        product = builder.emit("product", "mul", (grad, builder.op.outputs[0]))
        builder.give(1, builder.emit("dtop", "neg", (product,)))


def _infer_sum_exp_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    logits, top, grad = inputs
    (wanted,) = _infer_sum_exp((logits, top), (), attrs)
    expect(grad == wanted, "operands differ", got=shapes(inputs), expected="logits[..., v], top[...], grad[...]")
    return (logits,)


def _signatures_sum_exp_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    rows = [AxisSignature((Split(d),) * 3, (Split(d),)) for d in rows_of(inputs)]
    classes = Split(len(rows))
    return [*rows, AxisSignature((classes, B, B), (classes,)), linear_in([2], 3)]


def _sum_exp_grad_by_kernel(call: Call) -> None:
    (logits, top, grad), out = call.inputs, call.outputs[0]
    row_kernels.exp_rows(logits, top, grad, np.float32(0), out, not np.may_share_memory(logits, out))


@by_rows("xss", "x", _sum_exp_grad_by_kernel)
def _run_sum_exp_grad(call: Call) -> None:
    xp, (logits, top, grad), out = call.xp, call.inputs, call.outputs[0]
    xp.subtract(logits, top[..., None], out=out)
    xp.exp(out, out=out)
    out *= grad[..., None]


def _own_labels(call: Call, labels: Array) -> tuple[Array, Array, Array]:
    """The rows whose label is among this rank's classes, those labels' columns, and which rows are valid at all.

    Raises:
        InputError: a label is no class, on every rank that sees it.
    """
    begin, end = call.input_boxes[0][-1]
    flat, classes = labels.reshape(-1), int_attr(call.attrs, "classes")
    valid = flat != int_attr(call.attrs, "ignore_index")
    strange = valid & ((flat < 0) | (flat >= classes))
    if strange.any():
        raise InputError("a label is no class", got=int(flat[strange][0]), expected=f"0 to {classes - 1}")
    rows = call.xp.nonzero(valid & (flat >= begin) & (flat < end))[0]
    return rows, flat[rows] - begin, valid


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    logits, labels, lse = inputs
    composes = len(logits.shape) > 0 and logits.shape[:-1] == labels.shape == lse.shape and not labels.dtype.is_float
    expected = "logits[..., v], integer labels[...], lse[...]"
    expect(composes and lse.dtype == logits.dtype, "cross_entropy shapes do not compose", got=inputs, expected=expected)
    smoothing, classes = float_attr(attrs, "label_smoothing"), int_attr(attrs, "classes")
    expect(0 <= smoothing < 1, "no label smoothing", got=smoothing, expected="a figure in [0, 1)")
    expect(classes == logits.shape[-1], "another number of classes", got=classes, expected=str(logits.shape[-1]))
    return (TensorSpec((), logits.dtype), TensorSpec((), logits.dtype))


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Linear in logits and lse together; the count does not depend on them."""
    rows = [AxisSignature((Split(d),) * 3, (P, P)) for d in rows_of(inputs)]
    return [*rows, AxisSignature((Split(len(rows)), B, B), (P, P)), AxisSignature((P, B, P), (P, B))]


def _run(call: Call) -> None:
    """Sum over valid rows of lse - (1 - s) logits[label] - s mean(logits), s the label smoothing."""
    (logits, labels, lse), (loss, count) = call.inputs, call.outputs
    rows, columns, valid = _own_labels(call, labels)
    smoothing = float_attr(call.attrs, "label_smoothing")
    picked = as_rows(logits)[rows, columns]
    loss[...] = lse.reshape(-1)[rows].sum() - (1 - smoothing) * picked.sum()
    if smoothing:
        share = smoothing / int_attr(call.attrs, "classes")
        loss[...] -= share * (as_rows(logits).sum(axis=-1) * valid).sum()
    count[...] = rows.size


def _gradient(builder: GradientBuilder) -> None:
    """Of the composition: `lse` is a function of the logits, and what it passes on is in the gradient of the logits."""
    if builder.wants(0):
        operands = builder.op.inputs if builder.is_loss else (*builder.op.inputs, builder.output_gradient())
        builder.give(0, builder.emit("dlogits", "cross_entropy_grad", operands, builder.op.attrs))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _infer(inputs[:3], updates, attrs)
    fits = len(inputs) == 3 or (len(inputs) == 4 and inputs[3].shape == ())
    expect(fits, "not the gradient of a loss", got=shapes(inputs), expected="a scalar, or none for one")
    return (inputs[0],)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    rest = (B,) * (len(inputs) - 3)
    rows = [AxisSignature((*(Split(d),) * 3, *rest), (Split(d),)) for d in rows_of(inputs)]
    classes = Split(len(rows))
    linear = [linear_in([3], 4)] if rest else []
    return [*rows, AxisSignature((classes, B, B, *rest), (classes,)), *linear]


def _write_probabilities(call: Call) -> None:
    """exp(logits - lse) - s / classes into the gradient."""
    (logits, _, lse, *_), dlogits = call.inputs, call.outputs[0]
    smoothing = float_attr(call.attrs, "label_smoothing")
    share = smoothing / int_attr(call.attrs, "classes")
    call.xp.subtract(logits, lse[..., None], out=dlogits)
    call.xp.exp(dlogits, out=dlogits)
    if smoothing:
        dlogits -= share


def _write_probabilities_by_kernel(call: Call) -> None:
    (logits, _, lse, *_), dlogits = call.inputs, call.outputs[0]
    share = float_attr(call.attrs, "label_smoothing") / int_attr(call.attrs, "classes")
    ones = call.workspace.constant("ones", lse.shape, lse.dtype, lambda: np.ones_like(lse))
    row_kernels.exp_rows(logits, lse, ones, np.float32(share), dlogits, not np.may_share_memory(logits, dlogits))


def _less_targets(write_probabilities: Callable[[Call], None]) -> Callable[[Call], None]:
    """softmax(logits) - target in valid rows, zero in others; target = (1 - s) onehot(label) + s / classes."""

    def run(call: Call) -> None:
        (_, labels, _, *grad), dlogits = call.inputs, call.outputs[0]
        rows, columns, valid = _own_labels(call, labels)
        write_probabilities(call)
        flat = as_rows(dlogits)
        flat[rows, columns] -= 1 - float_attr(call.attrs, "label_smoothing")
        if not valid.all():
            flat[~valid] = 0
        for factor in grad:
            dlogits *= factor

    return run


_run_grad = by_rows("xssg", "x", _less_targets(_write_probabilities_by_kernel))(_less_targets(_write_probabilities))


def _flop_4(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4 * inputs[0].size


def _flop_per_row(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    every = 2 * inputs[0].size if float_attr(attrs, "label_smoothing") else 0
    return 3 * inputs[1].size + every


def _nbytes_per_row(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """One logit per row is read, unless labels are smoothed."""
    logits = inputs[0].nbytes if float_attr(attrs, "label_smoothing") else inputs[2].nbytes
    return logits + inputs[1].nbytes + inputs[2].nbytes + outputs[0].nbytes + outputs[1].nbytes


_LOGITS, _ROW = TensorSpec((7, 5)), TensorSpec((7,))
_NEAR = (-2.0, 2.0)
"""Where a logit and the largest of its row lie: their difference is raised."""
_LABELS = TensorSpec((7,), DType.INT32)
_CHOICES: tuple[tuple[float, int, tuple[float, float]], ...] = ((0.0, -100, (0, 5)), (0.1, 2, (0, 5)))
_ATTRS = tuple(
    ({"ignore_index": ignore, "label_smoothing": smoothing, "classes": 5}, {1: labels})
    for smoothing, ignore, labels in _CHOICES
)
_LSE: Mapping[int, Callable[[Sequence[Array]], Array]] = {
    2: lambda drawn: np.log(np.exp(drawn[0]).sum(axis=-1)),
}
_DEEP = (TensorSpec((4, 6, 5)), TensorSpec((4, 6), DType.INT32), TensorSpec((4, 6)))

OPS = (
    OpDef(
        "sum_exp",
        _infer_sum_exp,
        _flop_4,
        _signatures_sum_exp,
        _run_sum_exp,
        _gradient_sum_exp,
        precision=PrecisionClass.SINGLE,
        scratch=scratch_like(0),
        examples=tuple(
            Example(specs, ranges={0: _NEAR, 1: _NEAR})
            for specs in ((_LOGITS, _ROW), (TensorSpec((4, 6, 5)), TensorSpec((4, 6))))
        ),
    ),
    OpDef(
        "sum_exp_grad",
        _infer_sum_exp_grad,
        _flop_4,
        _signatures_sum_exp_grad,
        _run_sum_exp_grad,
        in_place=(0,),
        examples=(Example((_LOGITS, _ROW, _ROW)),),
    ),
    OpDef(
        "cross_entropy",
        _infer,
        _flop_per_row,
        _signatures,
        _run,
        _gradient,
        nbytes=_nbytes_per_row,
        precision=PrecisionClass.SINGLE,
        examples=(
            *(Example((_LOGITS, _LABELS, _ROW), attrs=attrs, ranges=ranges, derive=_LSE) for attrs, ranges in _ATTRS),
            Example(_DEEP, attrs=_ATTRS[1][0], ranges={1: (0, 5)}, derive=_LSE),
        ),
    ),
    OpDef(
        "cross_entropy_grad",
        _infer_grad,
        _flop_4,
        _signatures_grad,
        _run_grad,
        in_place=(0,),
        examples=(
            *(Example((_LOGITS, _LABELS, _ROW), attrs=attrs, ranges=ranges) for attrs, ranges in _ATTRS),
            Example((_LOGITS, _LABELS, _ROW, TensorSpec(())), attrs=_ATTRS[1][0], ranges={1: (0, 5)}),
            Example(_DEEP, attrs=_ATTRS[0][0], ranges={1: (0, 5)}),
        ),
    ),
)
