"""Problem builder: a problem whose nodes and edges are added one by one.

What repeated layers have in common is made once: a table of costs is made of parts, and the same parts give the same
table. Tables are told apart by which they are, not by their numbers, so that it takes no time to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Numbers that nobody writes to any more; two tables of the same numbers are two tables."""

    numbers: npt.NDArray[Any]


class ProblemBuilder:
    """The nodes and edges so far; between two nodes there is one edge, the sum of what was added."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._costs: list[list[int]] = []
        self._usages: list[list[Usage]] = []
        self._edges: dict[tuple[int, int], Table] = {}
        self._tables: dict[tuple[object, ...], Table] = {}

    def add_node(self, name: str, costs: list[int], usages: Sequence[Usage] = ()) -> int:
        """The index of a new node."""
        self._names.append(name)
        self._costs.append(costs)
        self._usages.append(list(usages))
        return len(self._names) - 1

    def add_costs(self, node: int, costs: Sequence[int]) -> None:
        """Let the choices of a node cost something more."""
        self._costs[node] = [known + more for known, more in zip(self._costs[node], costs, strict=True)]

    def add_usage(self, node: int, usage: Usage) -> None:
        """Let a node hold something more."""
        self._usages[node].append(usage)

    def width(self, node: int) -> int:
        """How many choices a node has."""
        return len(self._costs[node])

    def add_edge(self, tail: int, head: int, table: Table) -> None:
        """Add a table to the pair; an edge from a node to itself is part of the node's own cost.

        Args:
            tail: a node.
            head: a node.
            table: costs, [choices of the tail, choices of the head].
        """
        if tail == head:
            own = np.minimum(np.array(self._costs[tail]) + np.diagonal(table.numbers), FORBIDDEN)
            self._costs[tail] = own.tolist()
            return
        known = self._edges.get((tail, head))
        self._edges[tail, head] = table if known is None else self.once(_sum, known, table)

    def once(self, made: Callable[..., IntArray], *parts: Table | int) -> Table:
        """What `made` makes of tables and numbers; the same parts give the same table."""
        key = (made, *parts)
        if key not in self._tables:
            self._tables[key] = Table(made(*(part.numbers if isinstance(part, Table) else part for part in parts)))
        return self._tables[key]

    def problem(self, name: str, limit: int | None) -> Problem:
        """What was added, as plain data; edges of one table share its numbers."""
        written = {table: tuple(table.numbers.ravel().tolist()) for table in self._edges.values()}
        nodes = tuple(
            Node(node, tuple(costs), tuple(usages))
            for node, costs, usages in zip(self._names, self._costs, self._usages, strict=True)
        )
        edges = tuple(Edge(tail, head, written[table]) for (tail, head), table in self._edges.items())
        return Problem(name, nodes, edges, limit)


def _sum(one: IntArray, other: IntArray) -> IntArray:
    table: IntArray = np.minimum(one + other, FORBIDDEN)
    return table
