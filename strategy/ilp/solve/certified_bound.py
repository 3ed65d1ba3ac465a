"""Certified bound: what follows from prices and messages found in floating point, in exact integers.

Prices and messages are rounded to multiples of powers of two that keep every sum within 60 bits. Whatever they are, the
bound that follows from them holds; rounding costs tightness only. `strategy.ilp.certificate.proof` defines the bounds.

Shapes: C_i choices of node i, R memory rows. Fixed-point numbers are int64 in units of 2^-bits or 2^-shift.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategy.ilp.certificate.proof import Bound, EliminationBound, MessageBound, Prices
from strategy.ilp.problem import FORBIDDEN
from strategy.ilp.solve.core import Core, FloatArray, IntArray
from strategy.ilp.solve.elimination import Bucket, EliminationResult, eliminate, min_marginals

# Magnitudes stay below 2^HEADROOM_BITS, well within what the checker adds exactly.
HEADROOM_BITS = 58
# Sums beyond this, which only prices and messages can reach, are scaled down.
LARGEST = 2.0 ** (HEADROOM_BITS - 1)
# A forbidden entry in scaled units.
INFINITE = 1 << 61
# Finer than this only costs space in a certificate.
FINEST_BITS = 30


@dataclass(frozen=True, slots=True)
class CertifiedBound:
    """One bound: what it proves of everything, and of whatever takes each choice.

    `by_choice[node]` (C_i,) are least totals in units of 2^-bits; `credit` is in units of 2^-shift. `picks` is the
    choice that has the least total, where that is known.
    """

    proof: Bound
    lower_bound: int
    by_choice: Mapping[int, IntArray]
    credit: int
    picks: Mapping[int, int] | None = None

    def choices_below(self, upper_bound: int) -> dict[int, IntArray]:
        """Of the nodes that can do without some choices: those that may cost less than `upper_bound`, ascending."""
        prices = self.proof.prices
        enough = -(-((upper_bound - 1 << prices.shift) + self.credit + 1) >> (prices.shift - prices.bits))
        enough = max(-INFINITE, min(enough, INFINITE))
        few = {}
        for node, totals in self.by_choice.items():
            cheap = totals < enough
            if not cheap.all():
                few[node] = np.flatnonzero(cheap)
        return few


def fixed_point_scales(magnitude: float, priced: float) -> tuple[int, int]:
    """(bits, shift): the finest fixed-point scales under which sums of costs, and of priced bytes, fit."""
    bits = max(min(HEADROOM_BITS - _exponent(magnitude), FINEST_BITS), 0)
    return bits, max(min(HEADROOM_BITS - _exponent(priced), bits + HEADROOM_BITS), bits)


def bound_of_total(total: int, credit: int, prices: Prices) -> int:
    """The bound that a total proves."""
    return -((credit - (total << (prices.shift - prices.bits))) >> prices.shift)


def room_credit(units: IntArray, room: IntArray, constant: int, shift: int) -> int:
    """The price of the rows' room (R,) less the constant, in units of 2^-shift."""
    paid = sum(unit * free for unit, free in zip(units.tolist(), room.tolist(), strict=True) if unit)
    return int(paid) - (constant << shift)


@dataclass(frozen=True, slots=True)
class PricedElimination:
    """Lagrangian relaxation solved by elimination: memory at some prices, in units of 2^-bits, and what it proves."""

    result: EliminationResult
    prices: Prices
    credit: int

    @property
    def lower_bound(self) -> int:
        """What the minimum proves."""
        return bound_of_total(self.result.cost, self.credit, self.prices)


def eliminate_priced(core: Core, buckets: tuple[Bucket, ...], prices: FloatArray) -> PricedElimination:
    """The exact minimum of a core with its memory at `prices` (R,)."""
    dear = _dearest(core, prices)
    if sum(dear.values()) > LARGEST / 4:
        prices = prices * (LARGEST / 4 / sum(dear.values()))
        dear = _dearest(core, prices)
    largest = sum(_largest(cost) for cost in core.costs.values()) + sum(
        _largest(table) for one, row in core.tables.items() for other, table in row.items() if one < other
    )
    bits, shift = fixed_point_scales(
        largest + sum(dear.values()), max(max(dear.values(), default=0.0), float(prices.sum()))
    )
    units = np.rint(np.maximum(prices, 0.0) * 2.0**shift).astype(np.int64)
    prefix = [0, *itertools.accumulate(units.tolist())]
    costs = {}
    for node, cost in core.costs.items():
        scaled = np.where(cost < FORBIDDEN, cost << bits, FORBIDDEN)
        weighed = [
            amounts * (prefix[last] - prefix[first])
            for (first, last), amounts in core.spans[node].items()
            if prefix[last] > prefix[first]
        ]
        if weighed:
            scaled = np.minimum(scaled + (np.sum(weighed, axis=0) >> (shift - bits)), FORBIDDEN)
        costs[node] = scaled
    credit = room_credit(units, core.room, core.constant, shift)
    return PricedElimination(eliminate(buckets, costs, bits), Prices(units, shift, bits), credit)


def certify_elimination(core: Core, buckets: tuple[Bucket, ...], prices: FloatArray) -> CertifiedBound:
    """The exact minimum of a core with its memory at `prices` (R,), and of what takes each choice."""
    priced = eliminate_priced(core, buckets, prices)
    by_choice = {
        node: np.where(total >= FORBIDDEN, INFINITE, total)
        for node, total in min_marginals(buckets, priced.result).items()
    }
    proof = EliminationBound(priced.prices, np.array([bucket.node for bucket in buckets], np.int64))
    return CertifiedBound(proof, priced.lower_bound, by_choice, priced.credit, priced.result.picks)


def certify_constant(core: Core) -> CertifiedBound:
    """The bound without prices and messages: costs and tables have no negative entry."""
    prices = Prices(np.zeros(core.room.size, np.int64), 0, 0)
    cells = sum(sum(core.tables[one][other].shape) for one, other in core.pairs())
    by_choice = {node: np.where(cost >= FORBIDDEN, INFINITE, cost) for node, cost in core.costs.items()}
    return CertifiedBound(
        MessageBound(prices, np.zeros(cells, np.int64), np.zeros(0, np.int64)), core.constant, by_choice, -core.constant
    )


def _dearest(core: Core, prices: FloatArray) -> dict[int, float]:
    """The most that each node can pay for memory."""
    before = np.concatenate(([0.0], np.cumsum(prices)))
    return {
        node: sum(float(amounts.max()) * (before[last] - before[first]) for (first, last), amounts in spans.items())
        for node, spans in core.spans.items()
    }


def _exponent(value: float) -> int:
    return math.frexp(max(value, 1e-30))[1]


def _largest(entries: IntArray) -> float:
    return float(np.where(entries < FORBIDDEN, entries, 0).max())
