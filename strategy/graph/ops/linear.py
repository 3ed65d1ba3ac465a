"""Linear element-wise ops: `neg`, `scale`, `cast`, `add_n`, through which terms of sums pass; and `full_like`."""

from __future__ import annotations

import itertools
import math

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    MAX,
    MIN,
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
from strategy.graph.ops.elementwise import RAGGED, SPECS, extremes, flop_per_element, infer_alike, infer_float
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import on_rows, same_rows
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import B, P, Sbp, Split
from strategy.sbp.tensor import DType, TensorSpec

DTYPES = tuple(dtype for dtype in DType if not dtype.is_code)
"""What is cast to without a scale."""


def _run_neg(call: Call) -> None:
    call.xp.negative(call.inputs[0], out=call.outputs[0])


def _signatures_neg(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    elementwise = elementwise_signatures(inputs[0].shape, 1)
    return [*elementwise, linear_in([0], 1), *extremes(increasing=False)]


def _gradient_linear(builder: GradientBuilder) -> None:
    if builder.wants(0):
        builder.give(0, builder.emit("dx", builder.op.kind, (builder.output_gradient(),), builder.op.attrs))


def _infer_scale(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    factor = float_attr(attrs, "factor")
    expect(math.isfinite(factor), "not a scale", got=factor, expected="a finite factor")
    return infer_float(inputs, updates, attrs)


def _run_scale(call: Call) -> None:
    call.xp.multiply(call.inputs[0], float_attr(call.attrs, "factor"), out=call.outputs[0])


def _signatures_scale(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    factor = float_attr(attrs, "factor")
    monotone = extremes(increasing=factor > 0) if factor else []  # zero times an infinite term is no number
    return [*elementwise_signatures(inputs[0].shape, 1), linear_in([0], 1), *monotone]


def _infer_cast(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(attrs["dtype"] in DTYPES, "no such dtype", got=attrs["dtype"], expected=", ".join(DTYPES))
    return (TensorSpec(inputs[0].shape, DType(str(attrs["dtype"])), inputs[0].ragged),)


def _run_cast(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0].astype(call.outputs[0].dtype)


def _signatures_cast(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Rounding is increasing, but sums of rounded terms are not the rounded sum, and an infinite term is no integer."""
    source, target = inputs[0].dtype, outputs[0].dtype
    linear = [linear_in([0], 1)] if source.is_float and target.is_float else []
    keeps_order = target.is_float or not (source.is_float or target.nbytes < source.nbytes)
    monotone = extremes(increasing=True) if keeps_order else []
    return [*elementwise_signatures(inputs[0].shape, 1), *linear, *monotone]


def _gradient_cast(builder: GradientBuilder) -> None:
    (x,) = builder.specs(builder.op.inputs)
    (y,) = builder.specs(builder.op.outputs)
    if builder.wants(0) and x.dtype.is_float and y.dtype.is_float:
        builder.give(0, builder.emit("dx", "cast", (builder.output_gradient(),), {"dtype": str(x.dtype)}))


def _run_full_like(call: Call) -> None:
    call.outputs[0][...] = float_attr(call.attrs, "value")


def _signatures_full_like(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """What it reads does not matter, so any layout will do."""
    splits: list[Sbp] = [Split(d) for d in range(len(inputs[0].shape))]
    return [AxisSignature((x,), (y,)) for x, y in itertools.product([B, *splits, P, MAX, MIN], [B, *splits])]


def _signatures_add_n(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    arity = len(inputs)
    return [*elementwise_signatures(inputs[0].shape, arity), linear_in(range(arity), arity)]


def _run_add_n(call: Call) -> None:
    total = call.outputs[0]
    total[...] = call.inputs[0]
    for term in call.inputs[1:]:
        total += term


def _gradient_add_n(builder: GradientBuilder) -> None:
    for position in range(len(builder.op.inputs)):
        if builder.wants(position):
            builder.give(position, builder.output_gradient())


def _flop_add_n(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size * (len(inputs) - 1)


_ONE = flop_per_element(1)
_NONE = flop_per_element(0)
_LINEAR_EXAMPLES = tuple(Example((spec,)) for spec in SPECS)

OPS = (
    OpDef(
        "neg",
        infer_alike,
        _ONE,
        _signatures_neg,
        _run_neg,
        _gradient_linear,
        in_place=(0,),
        examples=_LINEAR_EXAMPLES,
    ),
    OpDef(
        "scale",
        _infer_scale,
        _ONE,
        _signatures_scale,
        on_rows(_run_scale),
        _gradient_linear,
        in_place=(0,),
        ragged=True,
        examples=(
            *(Example((SPECS[0],), attrs={"factor": factor}) for factor in (0.25, -3.0)),
            Example((RAGGED,), attrs={"factor": 0.5}),
        ),
    ),
    OpDef(
        "cast",
        _infer_cast,
        _NONE,
        _signatures_cast,
        on_rows(_run_cast),
        _gradient_cast,
        in_place=(0,),
        ragged=True,
        precision=PrecisionClass.CONVERTS,
        examples=(
            Example((TensorSpec((7, 5)),), attrs={"dtype": "float64"}),
            Example((RAGGED,), attrs={"dtype": "float64"}),
            Example((TensorSpec((7, 5)),), attrs={"dtype": "bfloat16"}),
            Example((TensorSpec((7, 5)),), attrs={"dtype": "float16"}),
            Example((TensorSpec((7, 5)),), attrs={"dtype": "int32"}, ranges={0: (-9.0, 9.0)}),
            Example((TensorSpec((7, 5), DType.INT32),), attrs={"dtype": "float32"}, ranges={0: (-9, 9)}),
            Example((TensorSpec((7, 5), DType.INT64),), attrs={"dtype": "int32"}, ranges={0: (-9, 9)}),
        ),
    ),
    OpDef(
        "full_like",
        infer_alike,
        _NONE,
        _signatures_full_like,
        _run_full_like,
        in_place=(0,),
        examples=(Example((SPECS[0],), attrs={"value": 1.5}),),
    ),
    OpDef(
        "add_n",
        infer_alike,
        _flop_add_n,
        _signatures_add_n,
        on_rows(_run_add_n, adds=True),
        _gradient_add_n,
        in_place=(0,),
        ragged=True,
        examples=(
            Example((SPECS[0],) * 2),
            Example((SPECS[0],) * 3),
            Example((TensorSpec(()),) * 2),
            Example((RAGGED,) * 2, derive={1: same_rows}),
        ),
    ),
)
