"""`softmax` and `log_softmax` over the last dim, and their gradients from their own outputs.

The last dim is not split: every rank would need the maximum and the sum over all of it. A class-split head takes
them apart, as `strategy.nn.losses` does: a maximum that is P(max), a sum that is P(sum).
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, expect, linear_in, shapes
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import PrecisionClass, RecomputeClass
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(len(inputs[0].shape) > 0, "a softmax of a scalar", got=shapes(inputs), expected="x[..., n]")
    expect(inputs[0].dtype.is_float, "not a tensor of floats", got=inputs[0].dtype, expected="a dtype of floats")
    return (inputs[0],)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d),), (Split(d),)) for d in range(len(inputs[0].shape) - 1)]


def _run_softmax(call: Call) -> None:
    xp, x, y = call.xp, call.inputs[0], call.outputs[0]
    xp.subtract(x, x.max(axis=-1, keepdims=True), out=y)
    xp.exp(y, out=y)
    y /= y.sum(axis=-1, keepdims=True)


def _run_log_softmax(call: Call) -> None:
    xp, x, y = call.xp, call.inputs[0], call.outputs[0]
    xp.subtract(x, x.max(axis=-1, keepdims=True), out=y)
    exponentials = call.workspace.get("exponentials", y.shape, y.dtype)
    xp.exp(y, out=exponentials)
    y -= xp.log(exponentials.sum(axis=-1, keepdims=True))


def _gradient(builder: GradientBuilder) -> None:
    if builder.wants(0):
        operands = (builder.output_gradient(), builder.op.outputs[0])
        builder.give(0, builder.emit("dx", f"{builder.op.kind}_grad", operands))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(inputs[0] == inputs[1], "operands differ", got=shapes(inputs), expected="one shape and dtype")
    return (inputs[0],)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    leading = [AxisSignature((Split(d), Split(d)), (Split(d),)) for d in range(len(inputs[0].shape) - 1)]
    return [*leading, linear_in([0], 2)]


def _run_softmax_grad(call: Call) -> None:
    """dx = y (dy - sum(dy y))."""
    xp, (grad, y), dx = call.xp, call.inputs, call.outputs[0]
    inner = xp.einsum("...d,...d->...", grad, y)
    xp.subtract(grad, inner[..., None], out=dx)
    dx *= y


def _run_log_softmax_grad(call: Call) -> None:
    """dx = dy - exp(y) sum(dy)."""
    xp, (grad, y), dx = call.xp, call.inputs, call.outputs[0]
    xp.exp(y, out=dx)
    dx *= grad.sum(axis=-1, keepdims=True)
    xp.subtract(grad, dx, out=dx)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 8 * inputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4 * inputs[0].size


_EXAMPLES = (Example((TensorSpec((7, 5)),)), Example((TensorSpec((4, 6, 5)),)))
_EXAMPLES_GRAD = (Example((TensorSpec((7, 5)),) * 2), Example((TensorSpec((4, 6, 5)),) * 2))

OPS = (
    OpDef(
        "softmax",
        _infer,
        _flop,
        _signatures,
        _run_softmax,
        _gradient,
        in_place=(0,),
        precision=PrecisionClass.SINGLE,
        recompute=RecomputeClass.SOFTMAX,
        examples=_EXAMPLES,
    ),
    OpDef(
        "softmax_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_softmax_grad,
        in_place=(0,),
        examples=_EXAMPLES_GRAD,
    ),
    OpDef(
        "log_softmax",
        _infer,
        _flop,
        _signatures,
        _run_log_softmax,
        _gradient,
        in_place=(0,),
        precision=PrecisionClass.SINGLE,
        scratch=scratch_like(0),
        examples=_EXAMPLES,
    ),
    OpDef(
        "log_softmax_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_log_softmax_grad,
        in_place=(1,),
        examples=_EXAMPLES_GRAD,
    ),
)
