"""Cutting planes in a trust region: the best prices of memory where elimination is narrow.

For prices >= 0 the least cost of a choice with memory priced, less the price of the room, bounds the optimum from
below (Lagrangian relaxation); elimination gives it exactly, and its choice a plane above the bound as a function of
prices. The next prices are where all planes promise most (Kelley 1960; Marsten, Hogan and Blankenship 1975).

Shapes: R memory rows, P planes. Prices, slopes and the trust region's center are (R,) float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from strategy.ilp.solve.certified_bound import eliminate_priced
from strategy.ilp.solve.core import Core, FloatArray
from strategy.ilp.solve.elimination import Bucket

# The trust region is given up below this radius, relative to the scale of the prices.
LEAST_RADIUS = 1e-6


def raise_prices_by_cuts(
    core: Core,
    buckets: tuple[Bucket, ...],
    prices: FloatArray,
    *,
    offer: Callable[[Mapping[int, int], int], int | None],
    max_rounds: int = 20,
) -> FloatArray:
    """The prices with the best bound found.

    Args:
        core: the problem with its memory rows.
        buckets: the plan of `core`'s elimination.
        prices: (R,), where to start.
        offer: takes each elimination's choice of the live nodes and its bound; returns the best known cost, if any.
            What it raises ends the work.
        max_rounds: how many eliminations at most.
    """
    scale_bytes = np.maximum(core.room, 1).astype(np.float64)
    scale_cost = 1.0
    center, radius = prices, 1.0
    trial = prices
    planes: list[tuple[float, FloatArray]] = []
    best: int | None = None
    for _ in range(max_rounds):
        priced = eliminate_priced(core, buckets, trial)
        value = priced.lower_bound
        excess = core.load(priced.result.picks) - core.room
        known = offer(priced.result.picks, value)
        if not planes:
            scale_cost = float(max(known - value, 1)) if known is not None else float(max(value - core.constant, 1))
        # The plane's value at no prices is the choice's cost.
        slope = excess / scale_bytes
        planes.append(((value - core.constant) / scale_cost - float(slope @ (trial * scale_bytes)) / scale_cost, slope))
        if best is None or value > best:
            radius *= 1.0 if best is None else 2.0
            best, center = value, trial
        else:
            radius *= 0.5
        if radius < LEAST_RADIUS or (known is not None and best >= known):
            break
        scaled, promised = _next_prices(planes, center * scale_bytes / scale_cost, radius)
        gain = promised * scale_cost + core.constant - best
        if gain < max(1.0, 1e-6 * scale_cost) and radius > 1e-3:
            break
        trial = scaled * scale_cost / scale_bytes
    return center


def _next_prices(planes: list[tuple[float, FloatArray]], center: FloatArray, radius: float) -> tuple[FloatArray, float]:
    """The prices (R,) within the trust region at which the planes promise the highest bound, and that promise.

    A plane is its value at no prices, and its slopes (R,).
    """
    from scipy.optimize import linprog

    moved = np.flatnonzero((np.max([slope for _, slope in planes], axis=0) > 0) | (center > 0))
    slopes = np.array([slope[moved] for _, slope in planes])
    levels = np.array([level for level, _ in planes])
    lower = np.maximum(center[moved] - radius, 0.0)
    answer = linprog(
        c=np.concatenate((np.zeros(moved.size), [-1.0])),
        A_ub=np.hstack((-slopes, np.ones((len(planes), 1)))),
        b_ub=levels,
        bounds=[*zip(lower, center[moved] + radius, strict=True), (None, None)],
        method="highs",
    )
    prices = center.copy()
    if answer.x is None:
        return prices, -math.inf
    prices[moved] = np.maximum(answer.x[:-1], 0.0)
    return prices, float(answer.x[-1])
