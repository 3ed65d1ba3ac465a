"""`shift`: a number added to every element."""

from __future__ import annotations

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
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.sbp.sbp import Partial, Reduce
from strategy.sbp.tensor import DType, TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    amount = float_attr(attrs, "amount")
    expect(x.dtype.is_float or amount.is_integer(), "cannot be added", got=amount, expected=f"a number of {x.dtype}")
    return (x,)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Terms of a sum would each be shifted. Terms of an extreme may be, but integers can leave their range."""
    (x,) = inputs
    extremes = [Partial(Reduce.MAX), Partial(Reduce.MIN)] if x.dtype.is_float else []
    return [*elementwise_signatures(x.shape, 1), *(AxisSignature((terms,), (terms,)) for terms in extremes)]


def _run(call: Call) -> None:
    call.xp.add(call.inputs[0], call.inputs[0].dtype.type(float_attr(call.attrs, "amount")), out=call.outputs[0])


def _gradient(builder: GradientBuilder) -> None:
    builder.give(0, builder.output_gradient())


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size


OPS = (
    OpDef(
        "shift",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        examples=(
            Example((TensorSpec((5, 4, 7)),), attrs={"amount": -1.5}),
            Example((TensorSpec((7, 5), DType.INT32),), attrs={"amount": 2}, ranges={0: (-9, 9)}),
        ),
    ),
)
