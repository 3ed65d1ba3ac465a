"""Multipliers: what proves that no layouts of a configuration take less than so much, by weak duality.

    step >= sum of shares x paths,   sum of shares <= 1        however long the paths are
    0    >= price x (what a row holds - limit)                 where the memory limit is kept
    0    >= price x (least - weights)                          of every inequality

Whatever the multipliers, their sum bounds the step from below: each coordinate of a point is taken where it makes the
sum least. They come from a linear program in floating point, and it does not matter: the sum is in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategy.bounds.inequality import Inequality
from strategy.bounds.linear_step import longest_path, memory_rows
from strategy.bounds.point import BYTES, SIZE, FloatArray
from strategy.layout.config import PlanConfig

PRICE_BITS, ROW_BITS = 80, 40
"""Whole numbers are in units of 2^-bits."""
MOST_NS, MOST_BYTES = 10**13, 10**7 << 20
"""No coordinate is more: what takes hours or holds ten TB is no layout of anything."""


@dataclass(frozen=True, slots=True)
class Path:
    """A path through the schedule: the longest one at a point, or the longest straight one.

    Attributes:
        times_ns: (MESSAGES.stop,) of the point.
        exact: whether all paths are looked at.
    """

    times_ns: tuple[int, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Of one configuration.

    Attributes:
        paths: with their shares.
        memory: prices of the rows of memory, in nanoseconds per byte.
        forms: place among the configuration's closed forms, with its price.
        cuts: place among cuts of templates, with its price.
    """

    paths: tuple[tuple[Path, float], ...]
    memory: tuple[float, ...]
    forms: tuple[tuple[int, float], ...]
    cuts: tuple[tuple[int, float], ...]


def proved_ns(
    multipliers: Multipliers,
    config: PlanConfig,
    layers: int,
    limit_bytes: int,
    least: FloatArray,
    known: Sequence[tuple[Inequality, float]],
    *,
    overlaps: bool,
) -> int:
    """What a step of a configuration takes at least.

    Args:
        multipliers: of which paths and memory count here.
        config: whose step.
        layers: of the model.
        limit_bytes: of a device's memory.
        least: (SIZE,) of every coordinate alone.
        known: inequalities that hold for it, with their prices.
        overlaps: whether messages travel beside computation.
    """
    rates, total, shares = [0] * SIZE, 0, 0
    for path, share in multipliers.paths:
        units = _units(share)
        row = longest_path(config, layers, np.array(path.times_ns, np.int64), overlaps=overlaps, exact=path.exact)
        shares += units
        for at in np.flatnonzero(row).tolist():
            rates[at] += units * (int(row[at]) << ROW_BITS)
    for row, price in zip(memory_rows(config, layers), multipliers.memory, strict=True):
        units = _units(price)
        total -= units * limit_bytes << ROW_BITS
        for at in np.flatnonzero(row).tolist() if units else ():
            rates[at] += units * (int(row[at]) << ROW_BITS)
    for inequality, price in known:
        units = _units(price)
        weights, value = inequality.with_bits(ROW_BITS)
        total += units * value
        for at, weight in enumerate(weights):
            rates[at] -= units * weight
    lowest = [int(one) for one in np.floor(least)]
    for at, rate in enumerate(rates):
        most = MOST_BYTES if BYTES.start <= at < BYTES.stop else MOST_NS
        total += rate * (lowest[at] if rate >= 0 else most)
    one = 1 << PRICE_BITS
    return total * one // max(shares, one) >> (PRICE_BITS + ROW_BITS)


def _units(price: float) -> int:
    """A multiplier as a whole number, none below zero; exact, however large."""
    numerator, denominator = max(price, 0.0).as_integer_ratio()
    return (numerator << PRICE_BITS) // denominator
