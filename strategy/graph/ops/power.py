"""Power: each element to a constant exponent, y = x^p, and its gradient dx = p x^(p - 1) dy."""

from __future__ import annotations

import math

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    float_attr,
    linear_in,
)
from strategy.graph.ops.elementwise import SPECS, flop_per_element, infer_float
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    exponent = float_attr(attrs, "exponent")
    expect(math.isfinite(exponent), "not an exponent", got=exponent, expected="a finite figure")
    return infer_float(inputs, updates, attrs)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return elementwise_signatures(inputs[0].shape, 1)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 2), linear_in([0], 2)]


def _run(call: Call) -> None:
    call.xp.power(call.inputs[0], float_attr(call.attrs, "exponent"), out=call.outputs[0])


def _run_grad(call: Call) -> None:
    (grad, x), out, exponent = call.inputs, call.outputs[0], float_attr(call.attrs, "exponent")
    slope = call.workspace.get("slope", x.shape, x.dtype)
    call.xp.power(x, exponent - 1.0, out=slope)
    slope *= exponent
    call.xp.multiply(grad, slope, out=out)


def _gradient(builder: GradientBuilder) -> None:
    if builder.wants(0):
        operands = (builder.output_gradient(), builder.op.inputs[0])
        builder.give(0, builder.emit("dx", "pow_grad", operands, builder.op.attrs))


_POSITIVE = (0.5, 3.0)
_EXPONENTS = (3.0, -1.5)

OPS = (
    OpDef(
        "pow",
        _infer,
        flop_per_element(8),
        _signatures,
        _run,
        _gradient,
        precision=PrecisionClass.SINGLE,
        examples=tuple(
            Example((spec,), attrs={"exponent": exponent}, ranges={0: _POSITIVE})
            for spec in SPECS
            for exponent in _EXPONENTS
        ),
    ),
    OpDef(
        "pow_grad",
        _infer,
        flop_per_element(10),
        _signatures_grad,
        _run_grad,
        scratch=scratch_like(1),
        examples=tuple(
            Example((spec, spec), attrs={"exponent": exponent}, ranges={1: _POSITIVE})
            for spec in SPECS
            for exponent in _EXPONENTS
        ),
    ),
)
