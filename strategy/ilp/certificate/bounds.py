"""Bounds in exact integers: priced memory, then a sum of minima, or the minimum itself by bucket elimination.

For prices >= 0, cost + price * (load - room) is at most the cost wherever the load fits the room (Lagrangian
relaxation), so its minimum over all choices is a bound. Prices of choices are rounded down: the bound only loses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.elimination import eliminate
from strategy.ilp.certificate.joins import joins_of, least_left
from strategy.ilp.certificate.proof import Bound, IntArray, MessageBound, Prices
from strategy.ilp.certificate.working import Working, legal, minus

# What a forbidden entry is in units of 2^-bits; all others, and sums of them, are within it.
INFINITE = 1 << 61


@dataclass(frozen=True, slots=True)
class Scaled:
    """A working problem with priced memory, in units of 2^-`bits`; `credit` is in units of 2^-`shift`.

    Costs are above the least of their node, which the credit gives back: so they may be as fine as they differ.
    """

    costs: Mapping[int, IntArray]
    prices: Prices
    credit: int

    def units(self, value: int) -> int:
        """The least total of costs and tables that proves `value`."""
        return -(-((value - 1 << self.prices.shift) + self.credit + 1) >> (self.prices.shift - self.prices.bits))

    def proved(self, total: int) -> int:
        """The bound that a total proves: the next integer above it, less the credit."""
        return -((self.credit - (total << (self.prices.shift - self.prices.bits))) >> self.prices.shift)


def least(work: Working, bound: Bound) -> int | None:
    """What `bound` proves about `work`; None if it proves that nothing is legal.

    Raises:
        CertificateError: a bound that does not fit the working problem, or that cannot be computed exactly.
    """
    scaled = _price(work, bound.prices)
    if work.is_impossible():
        return None
    if isinstance(bound, MessageBound):
        costs, total = _pass(work, scaled, bound)
        minima = [int(cost.min(initial=INFINITE)) for cost in costs.values()]
        if total is None or max(minima, default=0) >= INFINITE:
            return None
        return scaled.proved(total + sum(minima))
    minimum = eliminate(work, scaled.costs, bound.order, bound.prices.bits, infinite=INFINITE).minimum
    return None if minimum is None else scaled.proved(minimum)


def by_choice(work: Working, bound: Bound, below: int) -> dict[int, npt.NDArray[np.bool_]]:
    """For each choice of each node, whether `bound` proves that what takes it costs at least `below`.

    Raises:
        CertificateError: as for `least`.
    """
    scaled = _price(work, bound.prices)
    enough = scaled.units(below)
    if isinstance(bound, MessageBound):
        costs, total = _pass(work, scaled, bound)
        minima = {node: int(cost.min(initial=INFINITE)) for node, cost in costs.items()}
        if total is None or max(minima.values(), default=0) >= INFINITE:
            return {node: np.ones(cost.size, np.bool_) for node, cost in work.costs.items()}
        rest = total + sum(minima.values())
        shown = {node: _at_least(cost, enough - rest + minima[node]) for node, cost in costs.items()}
        return {node: np.zeros(cost.size, np.bool_) for node, cost in work.costs.items()} | shown
    run = eliminate(work, scaled.costs, bound.order, bound.prices.bits, infinite=INFINITE)
    return {node: _at_least(total, enough - run.constant) for node, total in run.by_choice().items()}


def _at_least(entries: IntArray, amount: int) -> npt.NDArray[np.bool_]:
    """Which entries are `amount` or more, forbidden ones always."""
    return np.asarray(entries >= max(-INFINITE, min(amount, INFINITE)))


def _price(work: Working, prices: Prices) -> Scaled:
    if not 0 <= prices.bits <= prices.shift <= 1 << 10:
        raise CertificateError("scales out of range", got=(prices.bits, prices.shift), expected="0 <= bits <= shift")
    if prices.units.size != work.room.size:
        raise CertificateError("prices that do not fit the rows", got=prices.units.size, expected=f"{work.room.size}")
    if prices.units.size and prices.units.min() < 0:
        raise CertificateError("a negative price", where=f"row {prices.units.argmin()}")
    units = prices.units.tolist()
    prefix = [0, *itertools.accumulate(units)]
    credit = sum(unit * room for unit, room in zip(units, work.room.tolist(), strict=True))
    bases = {node: int(cost[legal(cost)].min()) if legal(cost).any() else 0 for node, cost in work.costs.items()}
    credit -= work.constant + sum(bases.values()) << prices.shift
    costs = {node: _scaled(minus(cost, np.array([bases[node]])), prices.bits, 0) for node, cost in work.costs.items()}
    for node, spans in work.spans.items():
        weighed = [(prefix[last] - prefix[first], amounts) for (first, last), amounts in spans.items()]
        priced = _weighed_sum([item for item in weighed if item[0]], prices.shift - prices.bits)
        if priced is not None:
            cost = costs[node]
            costs[node] = np.where(cost >= INFINITE, INFINITE, _checked(cost, priced))
    return Scaled(costs, prices, credit)


def _weighed_sum(weighed: list[tuple[int, IntArray]], shift: int) -> IntArray | None:
    """The sum of weight * amounts (both >= 0), shifted right: exact, whatever their size."""
    if not weighed:
        return None
    largest = sum(weight * int(amounts.max()) for weight, amounts in weighed)
    if largest >> shift >= INFINITE:
        raise CertificateError("the price of memory is too large to be exact")
    if largest < INFINITE:
        return np.asarray(sum(amounts * weight for weight, amounts in weighed)) >> shift
    exact = [[weight * amount for amount in amounts.tolist()] for weight, amounts in weighed]
    return np.array([sum(column) >> shift for column in zip(*exact, strict=True)], np.int64)


def _scaled(entries: IntArray, bits: int, messages: int) -> IntArray:
    """Entries in units of 2^-bits, with space for messages of that magnitude; forbidden ones are `INFINITE`."""
    allowed = legal(entries)
    finite = np.where(allowed, entries, 0)
    largest = max(int(finite.max(initial=0)), -int(finite.min(initial=0)))
    if (largest << bits) + messages >= INFINITE:
        raise CertificateError("the scale is too fine for exact sums", got=bits)
    return np.where(allowed, finite << bits, INFINITE)


def _checked(one: IntArray, other: IntArray) -> IntArray:
    """The sum of two vectors, each within `INFINITE`."""
    total = one + other
    finite = total[one < INFINITE]
    if finite.size and (finite.max() >= INFINITE or finite.min() <= -INFINITE):
        raise CertificateError("the scale is too fine for exact sums")
    return total


def _pass(work: Working, scaled: Scaled, bound: MessageBound) -> tuple[dict[int, IntArray], int | None]:
    """The vectors of the nodes that are not joined, with all messages; the sum of the tables' minima without them."""
    joins = joins_of(work, bound.joined)
    gone = set(bound.joined.tolist())
    pairs = [(one, other) for one, other in work.pairs() if one not in gone and other not in gone]
    takers = [node for scope in (*pairs, *(join.scope for join in joins)) for node in scope]
    ends = np.cumsum([work.costs[node].size for node in takers], dtype=np.int64)
    if bound.messages.size != (ends[-1] if takers else 0):
        raise CertificateError("messages that do not fit the tables", got=bound.messages.size)
    largest = max(int(bound.messages.max(initial=0)), -int(bound.messages.min(initial=0)))
    if largest >= INFINITE:
        raise CertificateError("messages are too large to be exact")
    messages = iter(np.split(bound.messages, ends[:-1]))
    costs = {node: cost for node, cost in scaled.costs.items() if node not in gone}
    total: int | None = 0

    def given(scope: tuple[int, ...]) -> list[IntArray]:
        """The messages of the next table, which its nodes take."""
        mine = list(itertools.islice(messages, len(scope)))
        for node, message in zip(scope, mine, strict=True):
            costs[node] = np.where(costs[node] >= INFINITE, INFINITE, _checked(costs[node], message))
        return mine

    for one, other in pairs:
        mine, theirs = given((one, other))
        entries = _scaled(work.tables[one][other], scaled.prices.bits, 2 * largest)
        rest = np.where(entries >= INFINITE, INFINITE, entries - mine[:, None] - theirs[None, :])
        minimum = int(rest.min(initial=INFINITE))
        total = None if total is None or minimum >= INFINITE else total + minimum
    for join in joins:
        lowest = least_left(work, scaled.costs, join, given(join.scope), scaled.prices.bits, infinite=INFINITE)
        total = None if total is None or lowest is None else total + lowest
    return costs, total
