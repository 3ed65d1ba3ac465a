"""Rotary positions: every pair of a head's dims turned by an angle that grows with the position.

    rotary  x[b, s, h, d] -> [b, s, h, d]

Su et al. 2021 (arXiv:2104.09864), section 3.2.2; dims i and i + d/2 are a pair, as in Llama's published weights. The
gradient turns back (`reverse`). A rank finds its positions by its box.

    base         pair i turns by base^(-2i/d) per position
    frequencies  instead: what every pair turns by; with fewer than d/2, the dims behind those that turn stay
    scale        what turns is multiplied by it (YaRN: Peng et al. 2023, arXiv:2309.00071, section 3.4); absent: 1
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    float_attr,
    floats_attr,
    int_attr,
    linear_in,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.machine_coded import as_machine_code, as_operand
from strategy.graph.ops.row_kernels import turn_rows
from strategy.graph.ops.scratch import ScratchSizes, sized
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    fits = len(x.shape) == 4 and x.shape[3] % 2 == 0 and x.dtype.is_float
    expect(fits, "rotary needs heads of even size", got=shapes(inputs), expected="x[b, s, h, d], d even")
    if "frequencies" not in attrs:
        expect(float_attr(attrs, "base") > 1, "not a base of angles", got=attrs["base"], expected="a figure above 1")
        return (x,)
    pairs = len(floats_attr(attrs, "frequencies"))
    expect(0 < 2 * pairs <= x.shape[3], "rotary has other pairs", got=pairs, expected=f"1 to {x.shape[3] // 2}")
    return (x,)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Batch, positions, heads; a pair stays together."""
    return [*(AxisSignature((Split(dim),), (Split(dim),)) for dim in range(3)), linear_in([0], 1)]


def turns(call: Call, width: int) -> tuple[Array, Array]:
    """[s, 1, pairs] each, float64: cosines and sines of the angle by which a pair turns, at this rank's positions."""
    xp = call.xp
    begin, end = call.input_boxes[0][1]
    angle = xp.arange(begin, end)[:, None, None] * _frequencies(call, width)
    scale = float_attr(call.attrs, "scale") if "scale" in call.attrs else 1.0
    cosine, sine = scale * xp.cos(angle), scale * xp.sin(angle)
    return cosine, -sine if int_attr(call.attrs, "reverse") else sine


def _turns(call: Call, x: Array) -> Array:
    """[2, s, h, w]: what x is multiplied by, and what its halves swapped are: cosines, and sines of either sign.

    Repeated for every head: a product with few long rows is faster than one with many short ones.
    """
    xp, (cosine, sine) = call.xp, turns(call, x.shape[3])
    rows = xp.stack([xp.concatenate([cosine, cosine], axis=-1), xp.concatenate([-sine, sine], axis=-1)])
    return xp.repeat(rows, x.shape[2], axis=2).astype(x.dtype)


def _frequencies(call: Call, width: int) -> Array:
    """[w / 2]: radians per position of every pair that turns."""
    xp, half = call.xp, width // 2
    if "frequencies" in call.attrs:
        return xp.asarray(floats_attr(call.attrs, "frequencies"))
    return float_attr(call.attrs, "base") ** (xp.arange(half) / -half)


def _run(call: Call) -> None:
    """All dims turn, or the first w of them."""
    y, turning = call.outputs[0], 2 * len(floats_attr(call.attrs, "frequencies")) if "frequencies" in call.attrs else 0
    if 0 < turning < y.shape[3]:
        y[...] = call.inputs[0]
        _turn(call, y[..., :turning].copy(), y[..., :turning])
    else:
        _turn(call, call.inputs[0], y)


def _turn(call: Call, x: Array, y: Array) -> None:
    xp, half = call.xp, x.shape[3] // 2
    straight, across = call.workspace.constant("turns", (2, *x.shape[1:]), x.dtype, lambda: _turns(call, x))
    if as_machine_code(xp, (x, y)) and y.flags.carray:
        width = x.shape[3]
        turn_rows(*(as_operand(array, (array.size // width, width)) for array in (x, straight, across, y)))
        return
    swapped = call.workspace.get("swapped", x.shape, x.dtype)
    swapped[..., :half] = x[..., half:]
    swapped[..., half:] = x[..., :half]
    swapped *= across
    xp.multiply(x, straight, out=y)
    y += swapped


def _scratch(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """What turns, its halves swapped; the turns of every position."""
    x = inputs[0]
    width = 2 * len(floats_attr(attrs, "frequencies")) if "frequencies" in attrs else x.shape[3]
    b, *at = (*x.shape[:3], width)
    return ScratchSizes(sized(x.dtype.nbytes, (b, *at)), sized(x.dtype.nbytes, (2, *at)))


def _gradient(builder: GradientBuilder) -> None:
    attrs = {**builder.op.attrs, "reverse": int(not int_attr(builder.op.attrs, "reverse"))}
    builder.give(0, builder.emit("dx", "rotary", (builder.output_gradient(),), attrs))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 3 * inputs[0].size


_EXAMPLES = tuple(
    Example((TensorSpec(shape),), attrs={"base": 10000.0, "reverse": reverse})
    for shape, reverse in (((5, 7, 4, 4), 0), ((4, 4, 5, 2), 1))
)
_SCALED = Example((TensorSpec((4, 5, 4, 6)),), attrs={"frequencies": (0.9, 0.07), "scale": 1.3, "reverse": 0})

OPS = (OpDef("rotary", _infer, _flop, _signatures, _run, _gradient, scratch=_scratch, examples=(*_EXAMPLES, _SCALED)),)
