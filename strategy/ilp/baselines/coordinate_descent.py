"""Coordinate descent: one node at a time takes its best choice while all others keep theirs, until none moves.

Source: AutoDDL (Chen et al. 2023, arXiv:2301.06813), which searches SBP strategies so. A choice beyond the memory limit
is infinitely expensive, so no move leaves the limit; the start is the greedy one, brought within it by `repair`.

What it ends in is a local optimum: no single change that fits is cheaper. AutoDDL's figures are times on its cluster,
which cannot be repeated here.
"""

from __future__ import annotations

import numpy as np

from strategy.base.budget import Budget
from strategy.ilp.baselines.greedy import in_order
from strategy.ilp.baselines.memory import Memory, repair
from strategy.ilp.baselines.tables import Found, build_tables
from strategy.ilp.problem import Problem


def coordinate_descent(problem: Problem, budget: Budget) -> Found:
    """The local optimum that descent from the greedy choice ends in, or where the time ends it."""
    tables = build_tables(problem)
    start = repair(problem, tables, in_order(tables), budget)
    if start is None:
        return Found(None, note="no legal start")
    picks, memory = list(start), Memory(problem, start)
    changed = True
    while changed and not budget.is_over():
        changed = False
        for node in range(len(picks)):
            prices = np.where(memory.excesses(node, picks[node]) > 0, np.inf, tables.prices(node, picks))
            best = int(prices.argmin())
            if prices[best] < prices[picks[node]]:
                memory.move(node, picks[node], best)
                picks[node], changed = best, True
    return Found(tuple(picks))
