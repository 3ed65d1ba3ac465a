"""A problem as arrays, for methods that look at one node and its neighbours at a time.

Costs are float64 with infinity for what is forbidden, so that sums cannot overflow; they are exact below 2^53. What a
method answers is priced in exact integers by whoever asked it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from strategy.ilp.problem import FORBIDDEN, Problem

FloatArray = npt.NDArray[np.float64]

NOT_CHOSEN = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What a method answers: a choice, or None if it has no legal one; a lower bound if it proves any."""

    choice: tuple[int, ...] | None
    bound: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CostTables:
    """`costs[i][c]`, and `tables[i][j][c, d]`, the price of a pair from i's side; all edges of a pair are one table."""

    costs: tuple[FloatArray, ...]
    tables: tuple[Mapping[int, FloatArray], ...]

    def prices(self, node: int, choice: Sequence[int]) -> FloatArray:
        """What each choice of `node` costs where its neighbours are; those that are not chosen yet do not count."""
        columns = [table[:, choice[other]] for other, table in self.tables[node].items() if choice[other] >= 0]
        return np.add(self.costs[node], np.sum(columns, axis=0)) if columns else self.costs[node]

    def conflicts(self, node: int, choice: Sequence[int]) -> npt.NDArray[np.int64]:
        """How much of what each choice of `node` would pay is forbidden."""
        columns = [table[:, choice[other]] for other, table in self.tables[node].items() if choice[other] >= 0]
        counts: npt.NDArray[np.int64] = np.sum(np.isinf([self.costs[node], *columns]), axis=0)
        return counts


def build_tables(problem: Problem) -> CostTables:
    """The arrays of a problem; an edge from a node to itself is part of the node's own costs."""
    array = partial(np.array, dtype=np.float64)
    costs = [_with_infinity(array(node.costs)) for node in problem.nodes]
    tables: list[dict[int, FloatArray]] = [{} for _ in problem.nodes]
    for edge in problem.edges:
        shape = costs[edge.tail].size, costs[edge.head].size
        table = _with_infinity(array(edge.costs)).reshape(shape)
        if edge.tail == edge.head:
            costs[edge.tail] = costs[edge.tail] + np.diagonal(table)
        else:
            add_table(tables, edge.tail, edge.head, table)
    return CostTables(tuple(costs), tuple(map(MappingProxyType, tables)))


def add_table(
    tables: Sequence[dict[int, FloatArray]] | Mapping[int, dict[int, FloatArray]],
    tail: int,
    head: int,
    table: FloatArray,
) -> None:
    """Add a table to a pair, on both sides."""
    tables[tail][head] = tables[tail][head] + table if head in tables[tail] else table
    tables[head][tail] = tables[tail][head].T


def _with_infinity(costs: FloatArray) -> FloatArray:
    costs[costs >= FORBIDDEN] = np.inf
    return costs
