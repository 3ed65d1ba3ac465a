"""Block scales: casts to codes of 8 and 4 bits with a scale for every block of neighbours.

    quantize_blocks   x[..., s, d]           -> codes, scales[..., s / rows, d / columns]
                      x[..., s, d], amax[]   -> codes, scales, scale[]      where scales have 8 bits with a fraction

An element is the product of its code, the scale of its block and, where there is one, that of the tensor. `blocks` are
the rows and columns of a block, over the last two dims; the last block of a dim may be shorter. Scales of a block:

    float32          its amax / largest(codes)
    float8_e8m0fnu   the least power of two with which nothing is beyond the largest code: MX's scales (Open Compute
                     Project, "Microscaling formats (MX) specification" 1.0, 2023), rounded up as trainers do (Mishra
                     et al. 2025, arXiv:2506.08027), and not down, which would clip
    float8_e4m3fn    its amax / largest(codes) over the scale of the tensor, rounded to nearest; the latter is
                     amax / (largest(codes) * 448), so that the largest scale is 448 (NVIDIA 2025, arXiv:2509.25149)

Codes are rounded to nearest, ties to even. A block of zeros, and a tensor of zeros, scales by one; a figure that is
none makes the scale of its block none either. A block that is small beside the tensor may have a scale of zero: so are
its codes.

A piece is a tensor of its own as long as it cuts no block and no byte: see `is_aligned`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    ints_attr,
    shapes,
)
from strategy.graph.ops.on_rows import ragged_spec
from strategy.graph.ops.quantize import scale_of
from strategy.graph.ops.scratch import ScratchSizes
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import LARGEST_CODE, DType, Shape, TensorSpec

Blocks = tuple[int, int]
"""Rows and columns of a block."""
SCALES = (DType.FLOAT32, DType.FLOAT8_E8M0, DType.FLOAT8_E4M3)
FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Figures of E2M1 by the lower three bits of their codes; the fourth is the sign (MX specification, table 5)."""
_SIGN = 8
_LEAST_EXPONENT = 127
"""Of E8M0, below zero as above."""


def scales_shape(shape: Shape, blocks: Blocks) -> Shape:
    """Shape of the scales of a tensor, whose shape counts elements."""
    return (*shape[:-2], -(-shape[-2] // blocks[0]), -(-shape[-1] // blocks[1]))


def is_aligned(spec: TensorSpec, dim: int, blocks: Blocks, parts: int) -> bool:
    """Whether a dim of a tensor or of its codes can be cut in so many parts that are made of whole blocks and bytes."""
    at = dim - len(spec.shape)
    grain = blocks[at] if at >= -len(blocks) else 1
    packed_in = spec.dtype.packed if at == -1 else 1
    grain = math.lcm(grain, packed_in)
    return grain == 1 or spec.elements[dim] % (parts * grain) == 0


def spread(xp: ArrayModule, figures: Array, blocks: Blocks, shape: Shape) -> Array:
    """The figure of its block for every element of a tensor of this shape."""
    each = xp.repeat(xp.repeat(figures, blocks[0], axis=-2), blocks[1], axis=-1)
    return each[..., : shape[-2], : shape[-1]]


def amax_of_blocks(xp: ArrayModule, x: Array, blocks: Blocks) -> Array:
    """The largest magnitude of every block."""
    *lead, rows, columns = scales_shape(x.shape, blocks)
    magnitudes = xp.zeros((*lead, rows * blocks[0], columns * blocks[1]), x.dtype)
    magnitudes[..., : x.shape[-2], : x.shape[-1]] = xp.abs(x)
    return magnitudes.reshape(*lead, rows, blocks[0], columns, blocks[1]).max(axis=(-3, -1))


def powers_of_two(xp: ArrayModule, amax: Array, largest: float) -> Array:
    """The least power of two of E8M0 for each, by which divided it is not above the largest code; exact."""
    fraction, exponent = xp.frexp(amax)
    most_fraction, most_exponent = math.frexp(largest)
    least = exponent - most_exponent + (fraction > most_fraction)
    found = xp.ldexp(xp.ones_like(amax), xp.clip(least, -_LEAST_EXPONENT, _LEAST_EXPONENT))
    found = xp.where(amax == 0, 1.0, found)
    return xp.where(xp.isfinite(amax), found, np.nan).astype(amax.dtype)


def rounded(xp: ArrayModule, x: Array, fraction: int, least_exponent: int) -> Array:
    """Figures of a float with so many bits of fraction, the nearest, ties to even; none may be beyond its largest."""
    _, exponent = xp.frexp(x)
    step = xp.maximum(exponent - 1, least_exponent) - fraction
    return xp.ldexp(xp.rint(xp.ldexp(x, -step)), step)


def packed(xp: ArrayModule, figures: Array) -> Array:
    """Bytes of two codes each, of figures that E2M1 has."""
    codes = xp.searchsorted(xp.asarray(FOUR_BITS[1:]), xp.abs(figures), side="right").astype("uint8")
    codes |= xp.where(xp.signbit(figures), _SIGN, 0).astype("uint8")
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpacked(xp: ArrayModule, codes: Array, out: Array) -> None:
    """Write the figures of bytes of two codes each."""
    table = xp.asarray((*FOUR_BITS, *(-figure for figure in FOUR_BITS)))
    out[..., 0::2] = table[codes & 15]
    out[..., 1::2] = table[codes >> 4]


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, *amax = inputs
    expect(attrs["dtype"] in LARGEST_CODE, "no dtype of codes", got=attrs["dtype"], expected=" or ".join(LARGEST_CODE))
    expect(attrs["scales"] in SCALES, "no dtype of scales", got=attrs["scales"], expected=" or ".join(SCALES))
    codes, scales, blocks = DType(str(attrs["dtype"])), DType(str(attrs["scales"])), _blocks(attrs)
    wanted = [TensorSpec((), x.dtype.wide)] if scales is DType.FLOAT8_E4M3 else []
    fits = x.dtype.is_float and len(x.shape) > 1 and amax == wanted
    expect(fits, "quantize_blocks shapes do not compose", got=shapes(inputs), expected="x[..., s, d], perhaps amax[]")
    whole = x.shape[-1] % codes.packed == 0
    expect(whole, "two codes are a byte", got=x.shape, expected="a last dim that is even")
    alone = x.ragged is None or blocks[0] == 1
    expect(alone, "rows that may not be there share no scale", got=blocks, expected="blocks of one ragged row")
    shape = (*x.shape[:-1], x.shape[-1] // codes.packed)
    return (TensorSpec(shape, codes, x.ragged), TensorSpec(scales_shape(x.shape, blocks), scales, x.ragged), *amax)


def _blocks(attrs: Attrs) -> Blocks:
    rows, columns = ints_attr(attrs, "blocks")
    return rows, columns


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 3 * inputs[0].size


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    x, codes, blocks = inputs[0], outputs[0], _blocks(attrs)
    whole = (B,) * (len(inputs) - 1)
    return [
        AxisSignature((Split(d), *whole), (Split(d), Split(d), *whole))
        for d in range(len(x.shape))
        if is_aligned(x, d, blocks, parts) and is_aligned(codes, d, blocks, parts)
    ]


def _run(call: Call) -> None:
    """The codes, written before they are rounded (see `strategy.graph.ops.half_precision`), but for packed ones."""
    xp, (x, *amax), (codes, scales, *scale) = call.xp, call.inputs, call.outputs
    blocks, dtype = _blocks(call.attrs), DType(str(call.attrs["dtype"]))
    largest = LARGEST_CODE[dtype]
    given, made, figures = x, codes, scales
    if isinstance(x, Rows):
        given, made, figures = x.rows, codes.hold(x.cells), scales.hold(x.cells)
    of_blocks = amax_of_blocks(xp, given, blocks)
    divisors = figures
    if call.attrs["scales"] == DType.FLOAT8_E8M0:
        figures[...] = powers_of_two(xp, of_blocks, largest)
    elif not amax:
        figures[...] = scale_of(xp, of_blocks, largest)
    else:
        most = LARGEST_CODE[DType.FLOAT8_E4M3]
        scale[0][...] = factor = scale_of(xp, amax[0], largest * most)
        figures[...] = rounded(xp, xp.clip(of_blocks / largest / factor, 0, most), 3, -6)
        divisors = xp.where(figures == 0, np.inf, figures * factor)
    scaled = call.workspace.get("scaled", given.shape, given.dtype)
    xp.divide(given, spread(xp, divisors, blocks, given.shape), out=scaled)
    xp.clip(scaled, -largest, largest, out=scaled)
    made[...] = packed(xp, rounded(xp, scaled, 1, 0)) if dtype.packed > 1 else scaled


def _scratch(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """What is divided by its scale, before it is rounded."""
    return ScratchSizes((replace(inputs[0], dtype=inputs[0].dtype.wide).nbytes,))


_X, _AMAX = TensorSpec((2, 12, 16)), TensorSpec(())
_POSITIVE = (1.5, 3.0)


def _example(x: TensorSpec, dtype: DType, scales: DType, blocks: Blocks) -> Example:
    amax = (_AMAX,) if scales is DType.FLOAT8_E4M3 else ()
    attrs: Attrs = {"dtype": str(dtype), "scales": str(scales), "blocks": blocks}
    return Example((x, *amax), attrs=attrs, ranges={1: _POSITIVE})


OPS = (
    OpDef(
        "quantize_blocks",
        _infer,
        _flop,
        _signatures,
        _run,
        ragged=True,
        piecewise=True,
        in_blocks=True,
        precision=PrecisionClass.CONVERTS,
        scratch=_scratch,
        examples=(
            _example(TensorSpec((7, 16)), DType.FLOAT8_E4M3, DType.FLOAT32, (1, 4)),
            _example(TensorSpec((6, 10)), DType.FLOAT8_E4M3, DType.FLOAT32, (4, 4)),
            _example(_X, DType.FLOAT8_E4M3, DType.FLOAT8_E8M0, (3, 1)),
            _example(_X, DType.FLOAT4_E2M1_X2, DType.FLOAT8_E4M3, (1, 4)),
            _example(TensorSpec((12, 8)), DType.FLOAT4_E2M1_X2, DType.FLOAT8_E4M3, (2, 2)),
            _example(ragged_spec((5, 4, 4, 8), 2), DType.FLOAT8_E4M3, DType.FLOAT32, (1, 2)),
        ),
    ),
)
