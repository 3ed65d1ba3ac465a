"""Nonlinear element-wise ops of one operand: a row of a table each.

A row is a meaning and a slope, which the gradient multiplies by the output's gradient. Increasing kinds that are
defined everywhere carry P(max) and P(min): a root or a logarithm does not, because a term below the maximum may be
negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, elementwise_signatures, linear_in
from strategy.graph.ops.cache_blocks import by_elements, on_operands
from strategy.graph.ops.elementwise import RAGGED, SPECS, extremes, flop_per_element, infer_alike, infer_float
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import on_rows, same_rows
from strategy.graph.ops.scratch import DeclareScratch, ScratchSizes, scratch_like, sized
from strategy.graph.ops.traits import PrecisionClass

_GELU_C = math.sqrt(2.0 / math.pi)
_GELU_A = 0.044715
_POSITIVE = (0.5, 3.0)


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
    domain: tuple[float, float] | None = None
    """What it is tried on, where it is not defined everywhere, or grows too fast."""
    bilinear: bool = False
    """The slope is linear in what is kept as well."""
    in_place: bool = True
    slope_in_place: tuple[int, ...] = ()
    """Whether `run` may write over its operand, and which of its operands `slope` may write over."""
    ragged: bool = False
    """Operands may be ragged."""
    precision: PrecisionClass = PrecisionClass.FOLLOWS
    """What f computes in under mixed precision; its gradient follows what it reads."""
    slope_scratch: DeclareScratch | None = None
    """Of `slope`."""
    kernels: tuple[Callable[..., None], Callable[..., None]] | None = None
    """Machine code of `run` and of `slope`."""


def _relu(call: Call) -> None:
    call.xp.maximum(call.inputs[0], 0, out=call.outputs[0])


def _relu_slope(call: Call) -> None:
    xp, (grad, y) = call.xp, call.inputs
    active = call.workspace.get("active", y.shape, bool)
    xp.greater(y, 0, out=active)
    xp.multiply(grad, active, out=call.outputs[0])


def _truths(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """A truth value for every element."""
    return ScratchSizes(sized(1, inputs[1].shape))


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


def _erf(call: Call, x: Array) -> Array:
    """The error function, which the array modules leave to their SciPy."""
    special = import_module("cupyx.scipy.special" if call.xp.__name__ == "cupy" else "scipy.special")
    found: Array = special.erf(x)
    return found


def _gelu_exact(call: Call) -> None:
    """0.5 x (1 + erf(x / sqrt(2))), of which `gelu` is the usual approximation."""
    x, y = call.inputs[0], call.outputs[0]
    y[...] = _erf(call, x * math.sqrt(0.5))
    y += 1.0
    y *= x
    y *= 0.5


def _gelu_exact_slope(call: Call) -> None:
    """(1 + erf(x / sqrt(2))) / 2 + x e^(-x^2 / 2) / sqrt(2 pi)."""
    xp, (grad, x), out = call.xp, call.inputs, call.outputs[0]
    xp.multiply(x, x, out=out)
    out *= -0.5
    xp.exp(out, out=out)
    out *= x
    out *= 1.0 / math.sqrt(2.0 * math.pi)
    out += 0.5 + 0.5 * _erf(call, x * math.sqrt(0.5))
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
    _Unary(
        "relu", _relu, 1, _relu_slope, 1, increasing=True, ragged=True, slope_in_place=(0, 1), slope_scratch=_truths
    ),
    _Unary(
        "gelu",
        _gelu,
        8,
        _gelu_slope,
        16,
        keeps="input",
        ragged=True,
        in_place=False,
        slope_scratch=scratch_like(1, 1),
        kernels=(row_kernels.gelu, row_kernels.gelu_slope),
    ),
    _Unary("gelu_exact", _gelu_exact, 8, _gelu_exact_slope, 16, keeps="input", ragged=True, in_place=False),
    _Unary("tanh", _tanh, 4, _tanh_slope, 3, increasing=True, slope_in_place=(1,)),
    _Unary("sigmoid", _sigmoid, 6, _sigmoid_slope, 3, increasing=True),
    _Unary(
        "silu",
        _silu,
        7,
        _silu_slope,
        11,
        keeps="input",
        ragged=True,
        in_place=False,
        slope_scratch=scratch_like(1),
        kernels=(row_kernels.silu, row_kernels.silu_slope),
    ),
    _Unary("exp", _exp, 4, "mul", increasing=True, domain=(-3.0, 3.0), precision=PrecisionClass.SINGLE),
    _Unary("log", _log, 4, "div", keeps="input", domain=_POSITIVE, precision=PrecisionClass.SINGLE),
    _Unary("sqrt", _sqrt, 1, _sqrt_slope, 2, domain=_POSITIVE, slope_in_place=(0, 1), precision=PrecisionClass.SINGLE),
    _Unary("rsqrt", _rsqrt, 2, _rsqrt_slope, 4, domain=_POSITIVE, precision=PrecisionClass.SINGLE),
    _Unary(
        "square",
        _square,
        1,
        _square_slope,
        2,
        keeps="input",
        bilinear=True,
        slope_in_place=(0, 1),
        precision=PrecisionClass.SINGLE,
    ),
    _Unary("abs", _abs, 1, _abs_slope, 2, keeps="input", slope_in_place=(1,)),
)


def _definitions(row: _Unary) -> tuple[OpDef, ...]:
    """The kind of a row, and that of its gradient unless another kind does it."""
    slope = row.slope if isinstance(row.slope, str) else f"{row.kind}_grad"

    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        monotone = extremes(increasing=True) if row.increasing else []
        return [*elementwise_signatures(inputs[0].shape, 1), *monotone]

    def signatures_slope(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        linear = [linear_in([position], 2) for position in range(1 + row.bilinear)]
        return [*elementwise_signatures(inputs[0].shape, 2), *linear]

    def gradient(builder: GradientBuilder) -> None:
        if builder.wants(0):
            kept = builder.op.inputs[0] if row.keeps == "input" else builder.op.outputs[0]
            builder.give(0, builder.emit("dx", slope, (builder.output_gradient(), kept)))

    domain = {0: row.domain} if row.domain else {}
    specs = (*SPECS, RAGGED) if row.ragged else SPECS
    examples = tuple(Example((spec,), ranges=domain) for spec in specs)
    flop, ragged = flop_per_element(row.flop), row.ragged
    kernel, slope_kernel = (None, None) if row.kernels is None else map(on_operands, row.kernels)
    run, in_place = on_rows(by_elements(row.run, kernel)), (0,) * row.in_place
    forward = OpDef(
        row.kind,
        infer_float,
        flop,
        signatures,
        run,
        gradient,
        ragged=ragged,
        in_place=in_place,
        precision=row.precision,
        examples=examples,
    )
    if isinstance(row.slope, str):
        return (forward,)
    range_of = {1: row.domain} if row.domain else {1: (-0.9, 0.9)} if row.kind in ("tanh", "sigmoid") else {}
    examples = tuple(
        Example((spec, spec), ranges=range_of, derive={1: same_rows} if spec.ragged else {}) for spec in specs
    )
    flop, run = flop_per_element(row.slope_flop), on_rows(by_elements(row.slope, slope_kernel))
    backward = OpDef(
        slope,
        infer_alike,
        flop,
        signatures_slope,
        run,
        ragged=ragged,
        in_place=row.slope_in_place,
        scratch=row.slope_scratch,
        examples=examples,
    )
    return (forward, backward)


OPS = tuple(definition for row in _UNARY for definition in _definitions(row))
