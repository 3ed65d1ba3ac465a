"""Element-wise ops: `add` (the second operand may lack leading dims, as biases and positions do), `gelu`, `add_n`."""

from __future__ import annotations

import math

from strategy.gradient import GradientBuilder
from strategy.graph import Attrs
from strategy.ops.base import (
    AxisSignature,
    Call,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    linear_in,
    shapes,
    split_letters,
)
from strategy.tensor import TensorSpec

_LETTERS = "abcdefgh"
_GELU_C = math.sqrt(2.0 / math.pi)
_GELU_A = 0.044715


def _infer_add(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, y = inputs
    trailing = x.shape[len(x.shape) - len(y.shape) :] if len(y.shape) <= len(x.shape) else None
    expect(trailing == y.shape, "add shapes do not compose", got=shapes(inputs), expected="y as the last dims of x")
    expect(x.dtype == y.dtype, "add mixes dtypes", got=(x.dtype, y.dtype), expected="one dtype")
    return (x,)


def _signatures_add(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    x, y = (len(spec.shape) for spec in inputs)
    letters = _LETTERS[:x]
    return [*split_letters([letters, letters[x - y :]], [letters]), linear_in([0, 1], 2)]


def _run_add(call: Call) -> None:
    call.xp.add(call.inputs[0], call.inputs[1], out=call.outputs[0])


def _gradient_add(builder: GradientBuilder) -> None:
    x, y = builder.specs(builder.op.inputs)
    grad = builder.output_gradient()
    if builder.wants(0):
        builder.give(0, grad)
    if builder.wants(1):
        if x.shape != y.shape:
            grad = builder.emit("db", "sum_leading", (grad,), {"keep": len(y.shape)})
        builder.give(1, grad)


def _infer_same(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    alike = all(spec == inputs[0] for spec in inputs)
    expect(alike, "operands differ", got=shapes(inputs), expected="one shape and dtype")
    return (inputs[0],)


def _signatures_gelu(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return elementwise_signatures(inputs[0].shape, 1)


def _run_gelu(call: Call) -> None:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016 (arXiv:1606.08415), section 2."""
    xp, x, y = call.xp, call.inputs[0], call.outputs[0]
    xp.multiply(x, x, out=y)
    y *= _GELU_C * _GELU_A
    y += _GELU_C
    y *= x
    xp.tanh(y, out=y)
    y += 1.0
    y *= x
    y *= 0.5


def _gradient_gelu(builder: GradientBuilder) -> None:
    builder.give(0, builder.emit("dx", "gelu_grad", (builder.op.inputs[0], builder.output_gradient())))


def _signatures_gelu_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 2), linear_in([1], 2)]


def _run_gelu_grad(call: Call) -> None:
    xp, (x, grad), out = call.xp, call.inputs, call.outputs[0]
    tanh = call.workspace.get("tanh", x.shape, x.dtype)
    xp.multiply(x, x, out=out)
    xp.multiply(out, _GELU_C * _GELU_A, out=tanh)
    tanh += _GELU_C
    tanh *= x
    xp.tanh(tanh, out=tanh)
    out *= 3 * _GELU_C * _GELU_A
    out += _GELU_C
    out *= x  # x * d(inner)/dx
    slope = call.workspace.get("slope", x.shape, x.dtype)
    xp.multiply(tanh, tanh, out=slope)
    xp.subtract(1.0, slope, out=slope)
    out *= slope
    out += tanh
    out += 1.0
    out *= 0.5
    out *= grad


def _signatures_add_n(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    arity = len(inputs)
    return [*elementwise_signatures(inputs[0].shape, arity), linear_in(range(arity), arity)]


def _run_add_n(call: Call) -> None:
    total = call.outputs[0]
    total[...] = call.inputs[0]
    for term in call.inputs[1:]:
        total += term


def _flop_add(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size


def _flop_add_n(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size * (len(inputs) - 1)


def _flop_gelu(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 8 * outputs[0].size


def _flop_gelu_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 16 * outputs[0].size


OPS = (
    OpDef("add", _infer_add, _flop_add, _signatures_add, _run_add, _gradient_add),
    OpDef("add_n", _infer_same, _flop_add_n, _signatures_add_n, _run_add_n),
    OpDef("gelu", _infer_same, _flop_gelu, _signatures_gelu, _run_gelu, _gradient_gelu),
    OpDef("gelu_grad", _infer_same, _flop_gelu_grad, _signatures_gelu_grad, _run_gelu_grad),
)
