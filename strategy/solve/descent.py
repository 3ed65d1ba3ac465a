"""A legal choice fast: local search on the working form.

Every constraint that is broken (a forbidden pair, a memory row above its room) carries a weight that grows while it
stays broken (Morris 1993, the breakout method); once nothing is broken, only moves that lower the cost are left.
"""

from __future__ import annotations

import random
import time

import numpy as np
import numpy.typing as npt

from strategy.problem import FORBIDDEN
from strategy.solve.core import Core, IntArray

FloatArray = npt.NDArray[np.float64]


def descend(
    core: Core, start: dict[int, int], *, deadline_s: float, max_sweeps: int = 40, seed: int = 0
) -> dict[int, int] | None:
    """The best legal choice of the live nodes that coordinate descent from `start` reaches, or None.

    Args:
        core: the working form.
        start: one choice per live node, legal or not.
        deadline_s: when to stop, by time.perf_counter.
        max_sweeps: how often each node is visited at most.
        seed: of the order of the visits.
    """
    rng = random.Random(seed)
    picks = dict(start)
    nodes = list(core.costs)
    load = core.load(picks)
    pair_weight, row_weight = 1.0, np.ones(len(core.room))
    scale = np.maximum(core.room, 1).astype(np.float64)
    legal = late = False
    for _ in range(max_sweeps):
        rng.shuffle(nodes)
        moved = False
        broken_pairs = 0
        for k, node in enumerate(nodes):
            late = k % 16 == 0 and time.perf_counter() > deadline_s
            if late:
                break
            pick = picks[node]
            cost = core.costs[node]
            broken: FloatArray = np.where(cost >= FORBIDDEN, pair_weight, 0.0)
            for other, table in core.tables[node].items():
                line = table[:, picks[other]]
                forbidden = line >= FORBIDDEN
                broken += pair_weight * forbidden
                cost = cost + np.where(forbidden, 0, line)
            broken_pairs += int(broken[pick] > 0)
            for (first, last), amounts in core.spans[node].items():
                rows = slice(first, last)
                others = load[rows] - amounts[pick]
                excess = np.maximum(others[None, :] + amounts[:, None] - core.room[rows], 0)
                broken += excess @ (row_weight[rows] / scale[rows])
            best = _first_least(broken, cost, pick)
            if best != pick:
                for (first, last), amounts in core.spans[node].items():
                    load[first:last] += amounts[best] - amounts[pick]
                picks[node] = best
                moved = True
        excess_rows = load > core.room
        legal = not excess_rows.any() and _pairs_are_legal(core, picks)
        if late or (legal and not moved):
            break
        if not legal:
            row_weight = np.where(excess_rows, row_weight * 1.5, row_weight)
            pair_weight *= 1.2 if broken_pairs else 1.0
    return picks if legal else None


def _first_least(broken: FloatArray, cost: IntArray, pick: int) -> int:
    """Least broken, then cheapest; the present pick wins ties."""
    least = broken <= broken.min() + 1e-12
    candidates = np.where(least, cost, np.iinfo(np.int64).max)
    best = int(candidates.argmin())
    return pick if least[pick] and cost[pick] <= cost[best] else best


def _pairs_are_legal(core: Core, picks: dict[int, int]) -> bool:
    return all(cost[picks[node]] < FORBIDDEN for node, cost in core.costs.items()) and all(
        table[picks[node], picks[other]] < FORBIDDEN
        for node, row in core.tables.items()
        for other, table in row.items()
        if node < other
    )
