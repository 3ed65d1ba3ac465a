"""Lower bounds with memory: one price per binding row, the rest by elimination.

For prices lambda >= 0, min over choices of cost + lambda * (load - room) bounds the optimum from below (Lagrangian
relaxation); elimination computes the minimum exactly. The prices are raised by cutting planes in a trust region
(Kelley 1960; Marsten, Hogan and Blankenship 1975). Penalties are rounded down and the credit for the room up, each
to an integer, so that every bound is a statement in exact integers, whatever the prices' floats are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.problem import FORBIDDEN
from strategy.solve.core import MAX_TOTAL_COST, Core, IntArray
from strategy.solve.elimination import Bucket, min_marginals, sweep

FloatArray = npt.NDArray[np.float64]

# Prices are integers times a power of two: prefix sums over rows stay exact in float64.
PRICE_BITS = 40
# Above the relative error of the few float64 operations behind a penalty.
MARGIN = 1e-12


@dataclass(frozen=True, slots=True)
class Bound:
    """The best bound found, and for each choice of each node a bound on every legal choice that takes it."""

    lower_bound: int
    by_choice: dict[int, IntArray]


def raise_bound(
    core: Core,
    buckets: tuple[Bucket, ...],
    *,
    offer: Callable[[dict[int, int]], int | None],
    deadline_s: float,
    max_rounds: int = 20,
) -> Bound:
    """Maximises the bound over the prices.

    Args:
        core: the problem with its memory rows.
        buckets: the plan of `core`'s elimination.
        offer: takes each sweep's choice (of the live nodes); returns the best known cost of a legal choice, if any.
        deadline_s: when to stop, by time.perf_counter.
        max_rounds: how many sweeps at most.

    Returns:
        Valid bounds, however early the work stops.
    """
    rows = len(core.room)
    scale_bytes = np.maximum(core.room, 1).astype(np.float64)
    center, radius = np.zeros(rows), 1.0
    prices = center
    scale_cost = 1.0
    planes: list[tuple[float, FloatArray]] = []
    best: int | None = None
    known: int | None = None
    for _ in range(max_rounds):
        costs, credit = penalise(core, prices * scale_cost / scale_bytes)
        run = sweep(buckets, costs)
        value = run.cost - credit + core.constant
        load = core.load(run.picks)
        known = offer(run.picks)
        plain = sum(int(core.costs[node][pick]) for node, pick in run.picks.items()) + _table_cost(buckets, run.picks)
        if not planes:
            scale_cost = float(max(plain, 1) if known is None else max(known - value, 1))
        planes.append((plain / scale_cost, (load - core.room) / scale_bytes))
        if best is None or value > best:
            radius *= 1.0 if best is None else 2.0
            best, center = value, prices
        else:
            radius *= 0.5
        closed = known is not None and best >= known
        if closed or time.perf_counter() > deadline_s:
            break
        prices, promised = _next_prices(planes, center, radius)
        gain = promised * scale_cost + core.constant - best
        if gain < max(1.0, 1e-6 * scale_cost) and radius > 1e-3:
            break
        if radius < 1e-6:
            break
    final = center * scale_cost / scale_bytes
    costs, credit = penalise(core, final)
    run = sweep(buckets, costs)
    offset = core.constant - credit
    by_choice = {
        node: np.where(total >= FORBIDDEN, FORBIDDEN, total + offset)
        for node, total in min_marginals(buckets, run).items()
    }
    return Bound(run.cost + offset, by_choice)


def penalise(core: Core, prices: FloatArray) -> tuple[dict[int, IntArray], int]:
    """Node costs with the price of their memory added, and the credit to subtract from their minimum.

    For every choice that fits, the added penalties sum to at most the credit: both are exact integers.
    """
    prefix = np.concatenate(([0.0], np.cumsum(prices)))
    heaviest = sum(
        float(amounts.max()) * (prefix[last] - prefix[first])
        for spans in core.spans.values()
        for (first, last), amounts in spans.items()
    )
    if heaviest > MAX_TOTAL_COST:
        prices = prices * (MAX_TOTAL_COST / heaviest)
    largest = float(prices.max(initial=0.0))
    if largest <= 0.0:
        return dict(core.costs), 0
    exponent = math.ceil(math.log2(largest)) - PRICE_BITS
    unit = 2.0**exponent
    units = np.rint(prices / unit).astype(np.int64)
    summed = np.concatenate(([0], np.cumsum(units)))
    costs: dict[int, IntArray] = {}
    for node, cost in core.costs.items():
        penalty = np.zeros(cost.size)
        for (first, last), amounts in core.spans[node].items():
            penalty += amounts * (float(summed[last] - summed[first]) * unit)
        floor = np.floor(penalty * (1.0 - MARGIN)).astype(np.int64)
        costs[node] = np.minimum(cost + floor, FORBIDDEN)
    exact = sum(int(count) * int(room) for count, room in zip(units, core.room, strict=True))
    credit = exact << exponent if exponent >= 0 else -(-exact >> -exponent)
    return costs, credit


def _table_cost(buckets: tuple[Bucket, ...], picks: dict[int, int]) -> int:
    return sum(int(bucket.table[tuple(picks[node] for node in bucket.scope)]) for bucket in buckets)


def _next_prices(planes: list[tuple[float, FloatArray]], center: FloatArray, radius: float) -> tuple[FloatArray, float]:
    """The prices within the trust region at which the planes promise the highest bound, and that promise."""
    from scipy.optimize import linprog

    violated = np.flatnonzero(np.max([slope for _, slope in planes], axis=0) > 0)
    slopes = np.array([slope[violated] for _, slope in planes])
    levels = np.array([level for level, _ in planes])
    lower = np.maximum(center[violated] - radius, 0.0)
    answer = linprog(
        c=np.concatenate((np.zeros(violated.size), [-1.0])),
        A_ub=np.hstack((-slopes, np.ones((len(planes), 1)))),
        b_ub=levels,
        bounds=[*zip(lower, center[violated] + radius, strict=True), (None, None)],
        method="highs",
    )
    prices = center.copy()
    if answer.x is None:
        return prices, -math.inf
    prices[violated] = np.maximum(answer.x[:-1], 0.0)
    return prices, float(answer.x[-1])
