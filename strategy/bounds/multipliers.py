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

from strategy.bounds.crossings import FAR_KIND, NEAR_KIND, Crossings, kinds_of_places
from strategy.bounds.inequality import Inequality
from strategy.bounds.linear_step import longest_path, memory_rows
from strategy.bounds.pipeline_parts import parts_at
from strategy.bounds.point import (
    BACKWARD_COVERED,
    BYTES,
    FAR,
    MESSAGES,
    MICRO,
    MICRO_COPIED,
    MICRO_OVERLAPPED,
    MICRO_WAITED,
    MOVED,
    NEAR,
    PARTS,
    SIZE,
    TIMES,
    FloatArray,
)
from strategy.layout.config import PlanConfig
from strategy.layout.step_times import TICKS, Overlap, covered_ticks
from strategy.space.short_model import MIDDLE

PRICE_BITS, ROW_BITS, TICK_BITS = 80, 40, TICKS.bit_length() - 1
"""Whole numbers are in units of 2^-bits."""
SLIGHT = 1e-4
"""By so much at most prices are lowered for what a linear program errs by."""
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
        known: of each way to treat the layers between, what is known of it. By the same paths and prices of memory, a
            mix of ways takes no less than one of them.
    """

    paths: tuple[tuple[Path, float], ...]
    memory: tuple[float, ...]
    known: tuple[PricedForms, ...]


@dataclass(frozen=True, slots=True)
class PricedForms:
    """Inequalities with prices.

    Attributes:
        forms: place among closed forms, with its price.
        cuts: place among cuts of templates, with its price.
    """

    forms: tuple[tuple[int, float], ...]
    cuts: tuple[tuple[int, float], ...]


Bounded = tuple[FloatArray, Sequence[tuple[Inequality, float]]]
"""Of a way: (SIZE,) the least of every coordinate alone, and inequalities that hold for it, with their prices."""


def proved_ns(
    multipliers: Multipliers,
    config: PlanConfig,
    layers: int,
    limit_bytes: int,
    ways: Sequence[Bounded],
    overlap: Overlap,
    crossings: Crossings,
    bound_ns: int,
) -> int:
    """What a step of a configuration takes at least, or the bound in question if that is less.

    Args:
        multipliers: of which paths and memory count here.
        config: whose step.
        layers: of the model.
        limit_bytes: of a device's memory.
        ways: what is known of each way to treat the layers between.
        overlap: how communication runs beside computation.
        crossings: how its stages lie.
        bound_ns: the bound in question.
    """
    rates, total, shares = [0] * SIZE, 0, 0
    for path, share in multipliers.paths:
        units = _units(share)
        times_ns = np.array(path.times_ns, np.int64)
        row = longest_path(config, layers, times_ns, overlap=overlap, crossings=crossings, exact=path.exact)
        shares += units
        for at in np.flatnonzero(row).tolist():
            rates[at] += units * (int(row[at]) << (ROW_BITS - TICK_BITS))
    rows = memory_rows(config, layers)
    for row, price in zip(rows, multipliers.memory, strict=True):
        units = _units(price)
        total -= units * limit_bytes << ROW_BITS
        for at in np.flatnonzero(row).tolist() if units else ():
            rates[at] += units * (int(row[at]) << ROW_BITS)
    most = np.full(SIZE, float(MOST_NS))
    most[TIMES] = _most_ns(config, layers, bound_ns, overlap)
    most[MESSAGES] = _most_of_messages_ns(config, layers, bound_ns, overlap, crossings)
    # Where the memory limit is kept, nothing holds more than that, as often as a row counts it.
    most[BYTES] = np.minimum(limit_bytes // np.maximum(rows.max(0)[BYTES], 1) + 1, MOST_BYTES)
    most[BYTES][rows.max(0)[BYTES] == 0] = MOST_BYTES
    if len(ways) > 1:  # one layer of a way may be on a stage where there are several of both
        often = parts_at(config, layers).sum(1).max(0)[MIDDLE]
        most[: MESSAGES.start].reshape(-1, PARTS)[:, MIDDLE] *= often
        most[BYTES.start : MOVED.start].reshape(-1, PARTS)[:, MIDDLE] *= often
    one = 1 << PRICE_BITS
    least = total + min(_least_of_way(rates, way, most) for way in ways)
    return least * one // max(shares, one) >> (PRICE_BITS + ROW_BITS)


def tempered(
    multipliers: Multipliers,
    config: PlanConfig,
    layers: int,
    ways: Sequence[Bounded],
    overlap: Overlap,
    crossings: Crossings,
) -> Multipliers:
    """The same with prices of what is known so little lower that no coordinate has more of these than of all else.

    Linear programs err, by a few millionths of a price; and what a coordinate has too much counts as often as there is
    of it at most, which may be all of the step. The arguments are those of `proved_ns`.
    """
    paid = np.zeros(SIZE)
    for path, share in multipliers.paths:
        times_ns = np.array(path.times_ns, np.int64)
        row = longest_path(config, layers, times_ns, overlap=overlap, crossings=crossings, exact=path.exact)
        paid += share / TICKS * row
    for row, price in zip(memory_rows(config, layers), multipliers.memory, strict=True):
        paid += price * row
    known = []
    for (_, priced), of_way in zip(ways, multipliers.known, strict=True):
        counted = sum((price * inequality.weights for inequality, price in priced), np.zeros(SIZE))
        excess = (counted - paid) / np.where(counted > 0, counted, 1.0)
        less = 1 - 2 * float(excess[excess <= SLIGHT].max(initial=0.0))
        scaled = (tuple((at, less * price) for at, price in each) for each in (of_way.forms, of_way.cuts))
        known.append(PricedForms(*scaled))
    return Multipliers(multipliers.paths, multipliers.memory, tuple(known))


def _least_of_way(rates: Sequence[int], way: Bounded, most: FloatArray) -> int:
    """What a way counts at least by rates, of each coordinate a whole number, between its least and the most."""
    least, known = way
    rates, total = list(rates), 0
    for inequality, price in known:
        units, finer = _units(price), inequality.small_bits
        weights, value = inequality.with_bits(ROW_BITS + finer)
        total += units * value >> finer
        for at, weight in enumerate(weights):
            rates[at] -= -(-units * weight >> finer)  # rounded up
    lowest = [int(one) for one in np.floor(least)]
    return total + sum(
        rate * (low if rate >= 0 else int(high)) for rate, low, high in zip(rates, lowest, most, strict=True)
    )


def _most_ns(config: PlanConfig, layers: int, bound_ns: int, overlap: Overlap) -> FloatArray:
    """(TIMES,): what no pass has more of in a step that takes less than a bound.

    All parts are on some stage, and a step takes no less than each of their passes, than what goes on beside it or,
    of what is done once beside it, than a share of that. Passes of a micro-batch it takes for each of these, and for
    every part of that kind on the stage; of what is covered, that share which slows it down.
    """
    share = TICKS // config.virtual_stages
    if layers < PARTS or not share:
        return np.full(TIMES.stop, float(MOST_NS))
    found = np.full(TIMES.stop, float(min(MOST_NS, TICKS * (bound_ns + 1) // share)))
    often = config.num_micro_batches * parts_at(config, layers).sum(1).max(0)
    for passes in (MICRO, MICRO_OVERLAPPED, MICRO_WAITED, MICRO_COPIED):
        at = found[passes].reshape(-1, PARTS)
        found[passes] = np.minimum(at, (bound_ns + 1) // np.maximum(often, 1) + 1).ravel()
    slows = np.maximum(often, 1) * covered_ticks(config.schedule, overlap)
    found[BACKWARD_COVERED] = np.minimum(TICKS * (bound_ns + 1) // slows + 1, MOST_NS)
    return found


def _most_of_messages_ns(
    config: PlanConfig, layers: int, bound_ns: int, overlap: Overlap, crossings: Crossings
) -> FloatArray:
    """(6,): what no message takes more than in a step that takes less than a bound: no less than any path."""
    times_ns = np.zeros(MESSAGES.stop, np.int64)
    times_ns[MESSAGES] = 1
    often = longest_path(config, layers, times_ns, overlap=overlap, crossings=crossings, exact=False)[MESSAGES].copy()
    lying = kinds_of_places(config.pipeline, crossings)
    for at, how in ((NEAR, NEAR_KIND), (FAR, FAR_KIND)):
        here = slice(at.start - MESSAGES.start, at.stop - MESSAGES.start)
        if how in lying:  # a chunk waits for each, whatever a straight path passes
            often[here] = np.maximum(often[here], TICKS - overlap.slowed_ticks)
    found = TICKS * (bound_ns + 1) // np.maximum(often, 1) + 1
    return np.where(often > 0, np.minimum(found, MOST_NS), MOST_NS).astype(np.float64)


def _units(price: float) -> int:
    """A multiplier as a whole number, none below zero; exact, however large."""
    numerator, denominator = max(price, 0.0).as_integer_ratio()
    return (numerator << PRICE_BITS) // denominator
