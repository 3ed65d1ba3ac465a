"""Products: seconds of (m, k) by (k, n), from tiles, waves, splits of K, bandwidth and launch.

A library cuts the product into tiles that multiprocessors take in waves (NVIDIA, "Matrix multiplication background
user's guide", tile and wave quantisation). A tile takes, per step along K, what its multiply-adds or its operands from
the cache take, whichever is longer; every wave fills and drains once. Where tiles are few the library splits K and
adds up. The fastest tile and split counts. Beside it the operands and the result pass through the memory: the root of
the sum of squares joins the two, for they overlap but not perfectly. Every way is increasing in m, n and k, and so is
the least.

    seconds = launch + sqrt(tiles^2 + bytes^2) + cast
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategy.hardware.devices import DeviceSheet
from strategy.kernels.precision import Floats, KernelPrecision

_STEP = 64
"""Rows of K that are loaded at once."""
_LONG_S = 1e-3
"""Kernels of about this length and more run at the clock that the power budget sustains."""


@dataclass(frozen=True, slots=True)
class ProductConstants:
    """What products of one precision reach on one device; shares are of its sheet.

    Attributes:
        rate: share of the dense peak while tiles are multiplied.
        memory: share of the memory's bandwidth.
        fill_s: seconds in which a wave fills and drains; of a product without a cast, the launch too.
        cache_bytes_per_s: bytes that one multiprocessor loads from the cache in a second.
        slowdown: by which very long kernels are slower than short ones, less 1: the clock under the power budget.
        launch_s: seconds of launching the kernels of a product with a cast.
        casting: share of the memory's bandwidth at which activations are cast.
    """

    rate: float
    memory: float
    fill_s: float
    cache_bytes_per_s: float = math.inf
    slowdown: float = 0.0
    launch_s: float = 0.0
    casting: float = 1.0


@dataclass(frozen=True, slots=True)
class TileChoice:
    """Tiles (rows, columns) and splits of K that a library has."""

    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]


def _grid(rows: Sequence[int], columns: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((row, column) for row in rows for column in columns)


_CUBLAS = TileChoice(_grid((64, 128, 192, 256), (32, 64, 96, 128, 160, 192, 224, 256)), (1, 2, 4, 8, 16, 32))
_DEEPGEMM = TileChoice(_grid((128,), (32, 64, 96, 128, 160, 192, 256)), (1,))
_CUTLASS = TileChoice(_grid((128,), (64, 128, 192, 256)), (1,))
_CHOICES: Mapping[KernelPrecision, TileChoice] = {
    KernelPrecision.SINGLE: _CUBLAS,
    KernelPrecision.BF16: _CUBLAS,
    KernelPrecision.FP8: _CUBLAS,
    KernelPrecision.FP8_BLOCK: _DEEPGEMM,
    KernelPrecision.NVFP4: _CUTLASS,
    KernelPrecision.W4A8: _CUTLASS,
}


def seconds(
    sheet: DeviceSheet,
    precision: KernelPrecision,
    constants: ProductConstants,
    m: Floats,
    n: Floats,
    k: Floats,
    count: Floats | float = 1.0,
    *,
    cast: bool = True,
) -> Floats:
    """Seconds of `count` products with 16-bit activations (m, k), weights (k, n) and results; 0 where a dim is 0.

    Single precision has activations and results of 32 bits. Several products of one shape are one launch, whose tiles
    share the waves. Without `cast` activations come as narrow as they are multiplied.
    """
    m, n, k, count = (np.asarray(dim, dtype=float) for dim in np.broadcast_arrays(m, n, k, count))
    bandwidth = sheet.memory_bytes_per_s
    tiles = _tiles_s(sheet, precision, constants, m, n, k, count)
    tiles = tiles * (1 + constants.slowdown * tiles / (tiles + _LONG_S))
    given = precision.given_bytes
    nbytes = count * (m * k * precision.operand_bytes + n * k * precision.weight_bytes + given * m * n)
    found = np.hypot(tiles, nbytes / (bandwidth * constants.memory))
    if cast or not precision.casts:
        found = found + constants.launch_s
    if cast and precision.casts:
        found = found + count * m * k * (given + precision.operand_bytes) / (bandwidth * constants.casting)
    return np.where((m > 0) & (n > 0) & (k > 0) & (count > 0), found, 0.0)


def least_seconds(sheet: DeviceSheet, precision: KernelPrecision, constants: ProductConstants) -> tuple[float, float]:
    """(fixed, per FLOP) seconds that no product without a cast takes less than, whatever its shape.

    Tiles cover the product, waves the tiles and steps the depth, and one wave at least fills and drains.
    """
    launch_s = 0.0 if precision.casts else constants.launch_s
    return launch_s + constants.fill_s, 1 / (sheet.peak(precision.multiplied_bits) * constants.rate)


def _tiles_s(
    sheet: DeviceSheet,
    precision: KernelPrecision,
    constants: ProductConstants,
    m: Floats,
    n: Floats,
    k: Floats,
    count: Floats,
) -> Floats:
    """Seconds of the fastest tile and split, were the memory infinitely fast."""
    processors = sheet.multiprocessors
    flop_per_s = sheet.peak(precision.multiplied_bits) / processors * constants.rate
    choice = _CHOICES[precision]
    # Shapes of m and of (splits, *m): all ways to split the depth at once.
    splits = np.array(choice.splits, dtype=float).reshape(-1, *(1,) * np.ndim(m))
    depths = np.ceil(k / splits / _STEP) * _STEP
    added = np.where(splits > 1, constants.fill_s, 0.0)
    best = np.full(np.shape(m), np.inf)
    of_rows = {rows: np.ceil(m / rows) * count for rows, _ in choice.tiles}
    of_columns = {columns: np.ceil(n / columns) for _, columns in choice.tiles}
    for rows, columns in choice.tiles:
        loaded = (rows * precision.operand_bytes + columns * precision.weight_bytes) / constants.cache_bytes_per_s
        step_s = max(2 * rows * columns / flop_per_s, loaded)
        waves = np.ceil(of_rows[rows] * of_columns[columns] * splits / processors)
        taken = waves * (depths * step_s + constants.fill_s) + added
        best = np.minimum(best, taken.min(axis=0))
    return best
