"""What a choice holds over time, node by node, and descent that brings a choice within the limit.

None of the methods that we compare with keeps a limit at every time by itself, except the integer program. `repair` is
our help: it is what they all end with, or start from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategy.base.budget import Budget
from strategy.ilp.baselines.tables import NOT_CHOSEN, CostTables, FloatArray
from strategy.ilp.problem import Node, Problem, Usage

REPAIR_S = 2.0
"""Time for a repair after a method has spent its own."""

Piece = tuple[int, int, FloatArray]
"""(first instant, instant after the last, bytes per choice)"""


class Memory:
    """The bytes held at every instant by the nodes chosen so far; without a limit nothing is held."""

    def __init__(self, problem: Problem, choice: Sequence[int]) -> None:
        self.limit = problem.limit
        limited = problem.limit is not None
        usages = [_living(node) if limited else [] for node in problem.nodes]
        times = sorted({at for held in usages for usage in held for at in (usage.begin, usage.end)})
        instant = {at: i for i, at in enumerate(times)}
        self.live: FloatArray = np.zeros(max(len(times), 1))
        self.pieces = [_disjoint(held, instant) for held in usages]
        for node, pick in enumerate(choice):
            self.move(node, NOT_CHOSEN, pick)

    def move(self, node: int, old: int, new: int) -> None:
        """Node `node` goes from one choice to another; `NOT_CHOSEN` holds nothing."""
        for begin, end, amounts in self.pieces[node]:
            held = amounts[new] if new >= 0 else 0.0
            self.live[begin:end] += held - (amounts[old] if old >= 0 else 0.0)

    @property
    def peak(self) -> float:
        """The most that is held at any instant."""
        return float(self.live.max())

    @property
    def excess(self) -> float:
        """By how much the peak exceeds the limit; 0 where it fits."""
        return 0.0 if self.limit is None else max(0.0, self.peak - self.limit)

    def excesses(self, node: int, pick: int) -> FloatArray:
        """Bytes beyond the limit while `node` lives, for each of its choices instead of `pick`: 0 where it fits."""
        total: FloatArray | float = 0.0
        for begin, end, amounts in self.pieces[node]:
            others = self.live[begin:end].max() - (amounts[pick] if pick >= 0 else 0.0)
            total = total + np.maximum(others + amounts - (self.limit or 0), 0.0)
        return np.asarray(total, np.float64)


def _living(node: Node) -> list[Usage]:
    return [usage for usage in node.usages if usage.begin < usage.end and any(usage.amounts)]


def _disjoint(usages: Sequence[Usage], instant: dict[int, int]) -> list[Piece]:
    """The usages of one node as pieces of time that do not overlap."""
    cuts = sorted({instant[at] for usage in usages for at in (usage.begin, usage.end)})
    place = {at: i for i, at in enumerate(cuts)}
    if not cuts:
        return []
    change = np.zeros((len(cuts), len(usages[0].amounts)))
    for usage in usages:
        change[place[instant[usage.begin]]] += usage.amounts
        change[place[instant[usage.end]]] -= usage.amounts
    held = np.cumsum(change, axis=0)
    return [(cuts[i], cuts[i + 1], held[i]) for i in range(len(cuts) - 1) if held[i].any()]


def repair(problem: Problem, tables: CostTables, choice: Sequence[int], budget: Budget) -> tuple[int, ...] | None:
    """Descent from a full choice to a legal one; a legal one is left as it is.

    Nodes in a forbidden pair, or that live while there is too much, take the choice with least forbidden, then least
    excess, then least cost, in rounds.

    Returns:
        A legal choice, or None where there is none yet when nodes cease to move or the time is up.
    """
    picks = list(choice)
    memory = Memory(problem, picks)
    while not budget.is_over():
        legal, moved = True, False
        for node in range(len(picks)):
            conflicts, old = tables.conflicts(node, picks), picks[node]
            excess = np.broadcast_to(memory.excesses(node, old), conflicts.shape)
            if conflicts[old] == 0 and excess[old] == 0:
                continue
            legal = False
            best = int(np.lexsort((tables.prices(node, picks), excess, conflicts))[0])
            if (conflicts[best], excess[best]) < (conflicts[old], excess[old]):
                memory.move(node, old, best)
                picks[node], moved = best, True
            if budget.is_over():
                return None
        if legal:
            return tuple(picks)
        if not moved:
            return None
    return None
