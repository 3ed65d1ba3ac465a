"""Element-wise ops of one operand, and `add_n`.

A nonlinear kind is a row of a table: its meaning, and its slope, which the gradient multiplies by the output's
gradient. Increasing kinds that are defined everywhere carry P(max) and P(min): a root or a logarithm does not, because
a term below the maximum may be negative. `neg`, `scale` and `cast` between floats are linear and carry P(sum) too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from strategy.graph import Attrs
from strategy.ops.base import (
    MAX,
    MIN,
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    float_attr,
    linear_in,
    shapes,
)
from strategy.ops.gradient import GradientBuilder
from strategy.ops.on_rows import on_rows, ragged_spec, same_rows
from strategy.sbp import B, P, Sbp, Split
from strategy.tensor import DType, TensorSpec

_GELU_C = math.sqrt(2.0 / math.pi)
_GELU_A = 0.044715


@dataclass(frozen=True, slots=True)
class _Unary:
    """One nonlinear kind.

    `run` writes f(x). `slope` writes dy * f'(x), given dy and what the gradient `keeps`: "input" or "output"; a name in
    its place is the kind that does it, read as `kind(dy, kept)`. FLOPs are per element.
    """

    kind: str
    run: Callable[[Call], None]
    flop: int
    slope: Callable[[Call], None] | str
    slope_flop: int = 0
    keeps: str = "output"
    increasing: bool = False
    positive: bool = False
    """Defined above zero alone."""
    bilinear: bool = False
    """The slope is linear in what is kept as well."""
    ragged: bool = False
    """Operands may be ragged."""


def _relu(call: Call) -> None:
    call.xp.maximum(call.inputs[0], 0, out=call.outputs[0])


def _relu_slope(call: Call) -> None:
    xp, (grad, y) = call.xp, call.inputs
    active = call.workspace.get("active", y.shape, bool)
    xp.greater(y, 0, out=active)
    xp.multiply(grad, active, out=call.outputs[0])


def _gelu(call: Call) -> None:
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


def _gelu_slope(call: Call) -> None:
    xp, (grad, x), out = call.xp, call.inputs, call.outputs[0]
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


def _tanh(call: Call) -> None:
    call.xp.tanh(call.inputs[0], out=call.outputs[0])


def _tanh_slope(call: Call) -> None:
    xp, (grad, y), out = call.xp, call.inputs, call.outputs[0]
    xp.multiply(y, y, out=out)
    xp.subtract(1.0, out, out=out)
    out *= grad


def _write_sigmoid(call: Call, x: Array, out: Array) -> None:
    """(1 + tanh(x / 2)) / 2, which overflows nowhere."""
    call.xp.multiply(x, 0.5, out=out)
    call.xp.tanh(out, out=out)
    out += 1.0
    out *= 0.5


def _sigmoid(call: Call) -> None:
    _write_sigmoid(call, call.inputs[0], call.outputs[0])


def _sigmoid_slope(call: Call) -> None:
    xp, (grad, y), out = call.xp, call.inputs, call.outputs[0]
    xp.subtract(1.0, y, out=out)
    out *= y
    out *= grad


def _silu(call: Call) -> None:
    _write_sigmoid(call, call.inputs[0], call.outputs[0])
    call.outputs[0][...] *= call.inputs[0]


def _silu_slope(call: Call) -> None:
    """With s = sigmoid(x): s (1 + x (1 - s))."""
    xp, (grad, x), out = call.xp, call.inputs, call.outputs[0]
    sigmoid = call.workspace.get("sigmoid", x.shape, x.dtype)
    _write_sigmoid(call, x, sigmoid)
    xp.subtract(1.0, sigmoid, out=out)
    out *= x
    out += 1.0
    out *= sigmoid
    out *= grad


def _exp(call: Call) -> None:
    call.xp.exp(call.inputs[0], out=call.outputs[0])


def _log(call: Call) -> None:
    call.xp.log(call.inputs[0], out=call.outputs[0])


def _sqrt(call: Call) -> None:
    call.xp.sqrt(call.inputs[0], out=call.outputs[0])


def _sqrt_slope(call: Call) -> None:
    grad, y = call.inputs
    call.xp.divide(grad, y, out=call.outputs[0])
    call.outputs[0][...] *= 0.5


def _rsqrt(call: Call) -> None:
    call.xp.sqrt(call.inputs[0], out=call.outputs[0])
    call.xp.divide(1.0, call.outputs[0], out=call.outputs[0])


def _rsqrt_slope(call: Call) -> None:
    """-y^3 / 2."""
    xp, (grad, y), out = call.xp, call.inputs, call.outputs[0]
    xp.multiply(y, y, out=out)
    out *= y
    out *= -0.5
    out *= grad


def _square(call: Call) -> None:
    call.xp.multiply(call.inputs[0], call.inputs[0], out=call.outputs[0])


def _square_slope(call: Call) -> None:
    call.xp.multiply(call.inputs[0], call.inputs[1], out=call.outputs[0])
    call.outputs[0][...] *= 2.0


def _abs(call: Call) -> None:
    call.xp.absolute(call.inputs[0], out=call.outputs[0])


def _abs_slope(call: Call) -> None:
    call.xp.sign(call.inputs[1], out=call.outputs[0])
    call.outputs[0][...] *= call.inputs[0]


_UNARY = (
    _Unary("relu", _relu, 1, _relu_slope, 1, increasing=True, ragged=True),
    _Unary("gelu", _gelu, 8, _gelu_slope, 16, keeps="input", ragged=True),
    _Unary("tanh", _tanh, 4, _tanh_slope, 3, increasing=True),
    _Unary("sigmoid", _sigmoid, 6, _sigmoid_slope, 3, increasing=True),
    _Unary("silu", _silu, 7, _silu_slope, 11, keeps="input", ragged=True),
    _Unary("exp", _exp, 4, "mul", increasing=True),
    _Unary("log", _log, 4, "div", keeps="input", positive=True),
    _Unary("sqrt", _sqrt, 1, _sqrt_slope, 2, positive=True),
    _Unary("rsqrt", _rsqrt, 2, _rsqrt_slope, 4, positive=True),
    _Unary("square", _square, 1, _square_slope, 2, keeps="input", bilinear=True),
    _Unary("abs", _abs, 1, _abs_slope, 2, keeps="input"),
)


def _infer_alike(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    alike = all(spec == inputs[0] for spec in inputs)
    expect(alike, "operands differ", got=shapes(inputs), expected="one shape and dtype")
    return (inputs[0],)


def _infer_float(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(inputs[0].dtype.is_float, "not a tensor of floats", got=inputs[0].dtype, expected="a dtype of floats")
    return _infer_alike(inputs, updates, attrs)


def _flop_per_element(count: int) -> Callable[[Specs, Specs, Attrs], int]:
    return lambda inputs, outputs, attrs: count * outputs[0].size


def _monotone(*, increasing: bool) -> list[AxisSignature]:
    """P(max) and P(min) pass through an op of one operand; a falling one swaps them."""
    pairs = ((MAX, MAX), (MIN, MIN)) if increasing else ((MAX, MIN), (MIN, MAX))
    return [AxisSignature((read,), (written,)) for read, written in pairs]


_SPECS = TensorSpec((7, 5)), TensorSpec((4, 6, 5))
_RAGGED = ragged_spec((5, 4, 4, 7), 2)


def _definitions(row: _Unary) -> tuple[OpDef, ...]:
    """The kind of a row, and that of its gradient unless another kind does it."""
    slope = row.slope if isinstance(row.slope, str) else f"{row.kind}_grad"

    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        monotone = _monotone(increasing=True) if row.increasing else []
        return [*elementwise_signatures(inputs[0].shape, 1), *monotone]

    def signatures_slope(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        linear = [linear_in([position], 2) for position in range(1 + row.bilinear)]
        return [*elementwise_signatures(inputs[0].shape, 2), *linear]

    def gradient(builder: GradientBuilder) -> None:
        if builder.wants(0):
            kept = builder.op.inputs[0] if row.keeps == "input" else builder.op.outputs[0]
            builder.give(0, builder.emit("dx", slope, (builder.output_gradient(), kept)))

    domain = {0: (0.5, 3.0)} if row.positive else {}
    specs = (*_SPECS, _RAGGED) if row.ragged else _SPECS
    examples = tuple(Example((spec,), ranges=domain) for spec in specs)
    flop, ragged = _flop_per_element(row.flop), row.ragged
    run = on_rows(row.run)
    forward = OpDef(row.kind, _infer_float, flop, signatures, run, gradient, ragged=ragged, examples=examples)
    if isinstance(row.slope, str):
        return (forward,)
    range_of = {1: (0.5, 3.0)} if row.positive else {1: (-0.9, 0.9)} if row.kind in ("tanh", "sigmoid") else {}
    examples = tuple(
        Example((spec, spec), ranges=range_of, derive={1: same_rows} if spec.ragged else {}) for spec in specs
    )
    flop, run = _flop_per_element(row.slope_flop), on_rows(row.slope)
    return (forward, OpDef(slope, _infer_alike, flop, signatures_slope, run, ragged=ragged, examples=examples))


def _run_neg(call: Call) -> None:
    call.xp.negative(call.inputs[0], out=call.outputs[0])


def _signatures_neg(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    elementwise = elementwise_signatures(inputs[0].shape, 1)
    return [*elementwise, linear_in([0], 1), *_monotone(increasing=False)]


def _gradient_linear(builder: GradientBuilder) -> None:
    if builder.wants(0):
        builder.give(0, builder.emit("dx", builder.op.kind, (builder.output_gradient(),), builder.op.attrs))


def _infer_scale(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    factor = float_attr(attrs, "factor")
    expect(math.isfinite(factor), "not a scale", got=factor, expected="a finite factor")
    return _infer_float(inputs, updates, attrs)


def _run_scale(call: Call) -> None:
    call.xp.multiply(call.inputs[0], float_attr(call.attrs, "factor"), out=call.outputs[0])


def _signatures_scale(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    factor = float_attr(attrs, "factor")
    monotone = _monotone(increasing=factor > 0) if factor else []  # zero times an infinite term is no number
    return [*elementwise_signatures(inputs[0].shape, 1), linear_in([0], 1), *monotone]


def _infer_cast(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(attrs["dtype"] in list(DType), "no such dtype", got=attrs["dtype"], expected=", ".join(DType))
    return (replace(inputs[0], dtype=DType(str(attrs["dtype"]))),)


def _run_cast(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0].astype(call.outputs[0].dtype)


def _signatures_cast(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Rounding is increasing, but sums of rounded terms are not the rounded sum, and an infinite term is no integer."""
    source, target = inputs[0].dtype, outputs[0].dtype
    linear = [linear_in([0], 1)] if source.is_float and target.is_float else []
    keeps_order = target.is_float or not (source.is_float or target.nbytes < source.nbytes)
    monotone = _monotone(increasing=True) if keeps_order else []
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


_ONE = _flop_per_element(1)
_NONE = _flop_per_element(0)
_LINEAR_EXAMPLES = tuple(Example((spec,)) for spec in _SPECS)

OPS = (
    *(definition for row in _UNARY for definition in _definitions(row)),
    OpDef("neg", _infer_alike, _ONE, _signatures_neg, _run_neg, _gradient_linear, examples=_LINEAR_EXAMPLES),
    OpDef(
        "scale",
        _infer_scale,
        _ONE,
        _signatures_scale,
        on_rows(_run_scale),
        _gradient_linear,
        ragged=True,
        examples=(
            *(Example((_SPECS[0],), attrs={"factor": factor}) for factor in (0.25, -3.0)),
            Example((_RAGGED,), attrs={"factor": 0.5}),
        ),
    ),
    OpDef(
        "cast",
        _infer_cast,
        _NONE,
        _signatures_cast,
        on_rows(_run_cast),
        _gradient_cast,
        ragged=True,
        examples=(
            Example((TensorSpec((7, 5)),), attrs={"dtype": "float64"}),
            Example((_RAGGED,), attrs={"dtype": "float64"}),
            Example((TensorSpec((7, 5)),), attrs={"dtype": "bfloat16"}),
            Example((TensorSpec((7, 5)),), attrs={"dtype": "float16"}),
            Example((TensorSpec((7, 5)),), attrs={"dtype": "int32"}, ranges={0: (-9.0, 9.0)}),
            Example((TensorSpec((7, 5), DType.INT32),), attrs={"dtype": "float32"}, ranges={0: (-9, 9)}),
            Example((TensorSpec((7, 5), DType.INT64),), attrs={"dtype": "int32"}, ranges={0: (-9, 9)}),
        ),
    ),
    OpDef(
        "full_like",
        _infer_alike,
        _NONE,
        _signatures_full_like,
        _run_full_like,
        examples=(Example((_SPECS[0],), attrs={"value": 1.5}),),
    ),
    OpDef(
        "add_n",
        _infer_alike,
        _flop_add_n,
        _signatures_add_n,
        on_rows(_run_add_n, adds=True),
        _gradient_add_n,
        ragged=True,
        examples=(
            Example((_SPECS[0],) * 2),
            Example((_SPECS[0],) * 3),
            Example((TensorSpec(()),) * 2),
            Example((_RAGGED,) * 2, derive={1: same_rows}),
        ),
    ),
)
