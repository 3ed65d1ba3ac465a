"""Matrix products: how much of the peak a shape can reach, before anything is fitted.

A product of (M, K) by (K, N) is cut into tiles that multiprocessors take in waves; what the last tile and the last wave
leave idle is lost (NVIDIA, "Matrix multiplication background user's guide", tile and wave quantisation). The library
takes the best of a few tiles, and splits K where there are too few of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (128, 64, 0.78), (64, 64, 0.6))
"""Rows, columns, and rate relative to the largest tile: small ones load more bytes per FLOP."""
_SPLITS = ((1, 1.0), (2, 0.9), (4, 0.85), (8, 0.8))
_NOMINAL_RATE = 0.7
_NOMINAL_BANDWIDTH = 0.8


@dataclass(frozen=True, slots=True)
class EffectiveFlops:
    """FLOPs of products as they would be at the full rate; each array has one entry per job.

    `ideal` counts multiply-adds (or what moving the operands takes, if that is longer), `quantised` includes idle
    tiles and waves, `shallow` is `quantised` over K (the prologue of every tile), `odd` and `ragged` are the
    `ideal` FLOPs with a dim that is no multiple of 64, or of 2 elements.
    """

    ideal: Floats
    quantised: Floats
    shallow: Floats
    odd: Floats
    ragged: Floats

    def __add__(self, other: EffectiveFlops) -> EffectiveFlops:
        return EffectiveFlops(
            self.ideal + other.ideal,
            self.quantised + other.quantised,
            self.shallow + other.shallow,
            self.odd + other.odd,
            self.ragged + other.ragged,
        )

    def __mul__(self, times: Floats | float) -> EffectiveFlops:
        return EffectiveFlops(
            self.ideal * times,
            self.quantised * times,
            self.shallow * times,
            self.odd * times,
            self.ragged * times,
        )


def product(
    m: Floats, n: Floats, k: Floats, count: Floats, *, multiprocessors: Floats, peak: Floats, bandwidth: Floats,
    nbytes: Floats,
) -> EffectiveFlops:  # fmt: skip
    """`count` products of (m, k) by (k, n) in one launch; `nbytes` per element, `peak` and `bandwidth` per second.

    A product with an empty dim costs nothing.
    """
    m, n, k, count = (np.asarray(np.broadcast_to(value, np.shape(peak)), dtype=float) for value in (m, n, k, count))
    there = (m > 0) & (n > 0) & (k > 0) & (count > 0)
    m, n, k, count = (np.where(there, value, 1.0) for value in (m, n, k, count))
    flop = 2 * m * n * k * count
    best = np.full(flop.shape, np.inf)
    for rows, columns, rate in _TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns) * count
        for pieces, share in _SPLITS:
            waves = np.ceil(tiles * pieces / multiprocessors) / pieces
            cost = waves * multiprocessors * 2 * rows * columns * k / (rate * share)
            best = np.minimum(best, np.where((pieces == 1) | (tiles < multiprocessors), cost, np.inf))
    moved = (m * k + k * n + m * n) * count * nbytes / (bandwidth * _NOMINAL_BANDWIDTH) * peak * _NOMINAL_RATE
    ideal, quantised = np.maximum(flop, moved), np.maximum(np.maximum(best, flop), moved)
    odd = np.any([np.mod(value, 64) != 0 for value in (n, k)], axis=0)
    ragged = np.any([np.mod(value, 2) != 0 for value in (m, n, k)], axis=0)
    parts = (ideal, quantised, quantised / k, ideal * odd, ideal * ragged)
    return EffectiveFlops(*(np.where(there, part, 0.0) for part in parts))


def training(
    m: Floats, n: Floats, k: Floats, count: Floats, *, multiprocessors: Floats, peak: Floats, bandwidth: Floats,
    nbytes: Floats, trained: Floats | float = 1.0,
) -> tuple[EffectiveFlops, EffectiveFlops]:  # fmt: skip
    """The forward product of a weight (k, n) with m rows, and the two of its backward pass.

    `trained` is 1 where the weight has a gradient, 0 where it stands still.
    """
    given = {"multiprocessors": multiprocessors, "peak": peak, "bandwidth": bandwidth, "nbytes": nbytes}
    forward = product(m, n, k, count, **given)
    backward = product(m, k, n, count, **given) + product(n, k, m, count, **given) * trained
    return forward, backward
