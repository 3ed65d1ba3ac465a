"""Problem builder: a problem whose nodes and edges are added one by one.

What repeated layers have in common is made once: a table of costs is made of parts, and the same parts give the same
table. Tables are told apart by which they are, not by their numbers, so that it takes no time to find out.

A cost is a number, or several: what counts once for every weight that is given later (`LinearProblem`). Arrays of
costs have an axis more then, (..., weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.space.counts import Counts, IntArray

LARGEST_BITS, MOST_BITS = 62, 200
"""Of sums of whole numbers, and of scales."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Numbers that nobody writes to any more; two tables of the same numbers are two tables."""

    numbers: npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """Weights as whole numbers, so that costs are the same on every machine: floor(counts @ `units` / 2^`shift`).

    Attributes:
        units: (weights,) >= 0, in units of 2^-`bits`.
        bits: of those, may be negative.
        shift: by so many bits costs are coarser, >= 0.
    """

    units: IntArray
    bits: int
    shift: int

    @staticmethod
    def of(weights: npt.NDArray[np.float64], bits: int, shift: int) -> Weighing:
        """The next weights below."""
        return Weighing(np.floor(np.ldexp(weights, bits)).astype(np.int64), bits, shift)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """What they weigh."""
        found: npt.NDArray[np.float64] = np.ldexp(self.units.astype(np.float64), -self.bits)
        return found

    @property
    def is_in_range(self) -> bool:
        """Whether there are such weights: none below zero, and of a size that figures of a cluster have."""
        return self.units.min() >= 0 and 0 <= self.shift < LARGEST_BITS and abs(self.bits) <= MOST_BITS

    def total(self, cost: int) -> float:
        """What a cost of the problem stands for, in the unit of weights times counts."""
        return math.ldexp(cost, self.shift - self.bits)

    def cost(self, total: float) -> int:
        """The least cost that stands for no less than so much."""
        return math.ceil(math.ldexp(total, self.bits - self.shift))

    def costs(self, counts: Counts) -> IntArray:
        """(cells,); what is forbidden stays so."""
        costs: IntArray = counts.numbers @ self.units >> self.shift
        costs[counts.forbidden] = FORBIDDEN
        return costs


@dataclass(frozen=True, slots=True, eq=False)
class LinearProblem:
    """A problem whose costs are linear in weights.

    Attributes:
        name: of the problem.
        nodes: their names.
        costs: of the choices of all nodes, in the order of the nodes.
        sizes: (nodes,) how many choices each has.
        ends: (tail, head, number of the table) of every edge.
        cells: of all tables.
        table_sizes: (tables,) how many cells each has.
    """

    name: str
    nodes: tuple[str, ...]
    costs: Counts
    sizes: IntArray
    ends: tuple[tuple[int, int, int], ...]
    cells: Counts
    table_sizes: IntArray

    def at(self, weighing: Weighing) -> Problem:
        """The problem under weights; costs are rounded down."""
        own, cells = weighing.costs(self.costs).tolist(), weighing.costs(self.cells).tolist()
        tables = list(_split(cells, self.table_sizes))
        nodes = tuple(Node(*pair) for pair in zip(self.nodes, _split(own, self.sizes), strict=True))
        return Problem(self.name, nodes, tuple(Edge(tail, head, tables[k]) for tail, head, k in self.ends), None)

    def is_exact(self, weighing: Weighing) -> bool:
        """Whether costs under weights are added in 64 bits, and are no more than what was counted."""
        return weighing.is_in_range and self.most(weighing.units.astype(np.float64)) < 2.0**LARGEST_BITS

    def most(self, weights: npt.NDArray[np.float64]) -> float:
        """What the dearest legal choices of all nodes and pairs cost together."""
        own, cells = (_largest(*each, weights) for each in ((self.costs, self.sizes), (self.cells, self.table_sizes)))
        often = np.bincount([table for *_, table in self.ends], minlength=len(self.table_sizes))
        return float(own.sum() + often @ cells)

    def counted(self, choice: Sequence[int]) -> IntArray:
        """(weights,) what a choice counts."""
        starts, at = np.cumsum(self.sizes) - self.sizes, np.array(choice, np.int64)
        places = np.cumsum(self.table_sizes) - self.table_sizes
        ends = np.array(self.ends, np.int64).reshape(-1, 3)
        cells = places[ends[:, 2]] + at[ends[:, 0]] * self.sizes[ends[:, 1]] + at[ends[:, 1]]
        return self.costs.total(starts + at) + self.cells.total(cells)


def _largest(counts: Counts, sizes: IntArray, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of every piece, what weighs most and is not forbidden."""
    if not len(sizes):
        return np.zeros(0)
    found: npt.NDArray[np.float64] = np.maximum.reduceat(counts.weighed(weights), np.cumsum(sizes) - sizes)
    return found


def _split(values: Sequence[int], sizes: IntArray) -> Iterator[tuple[int, ...]]:
    begin = 0
    for end in np.cumsum(sizes).tolist():
        yield tuple(values[begin:end])
        begin = end


def weighed(ns: npt.ArrayLike, weight: int | IntArray) -> IntArray:
    """(..., weights): what nanoseconds cost that count so much; what is too dear to be counted is forbidden."""
    times = np.asarray(ns, np.int64)
    costs: IntArray = np.asarray(np.multiply.outer(times, weight))
    if float(times.max(initial=0)) * float(np.max(weight)) >= FORBIDDEN:
        dear = np.multiply.outer(times.astype(np.float64), weight) >= FORBIDDEN
        costs = np.where(dear, FORBIDDEN, costs)
    return costs


class ProblemBuilder:
    """The nodes and edges so far; between two nodes there is one edge, the sum of what was added."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._costs: list[IntArray] = []
        self._usages: list[list[Usage]] = []
        self._edges: dict[tuple[int, int], Table] = {}
        self._tables: dict[tuple[object, ...], Table] = {}

    def add_node(self, name: str, costs: npt.ArrayLike, usages: Sequence[Usage] = ()) -> int:
        """The index of a new node of (choices,) costs."""
        self._names.append(name)
        self._costs.append(np.asarray(costs, np.int64))
        self._usages.append(list(usages))
        return len(self._names) - 1

    def add_costs(self, node: int, costs: IntArray) -> None:
        """Let the choices of a node cost something more."""
        self._costs[node] = np.minimum(self._costs[node] + costs, FORBIDDEN)

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
            self.add_costs(tail, table.numbers[(np.arange(self.width(tail)),) * 2])
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
            Node(node, tuple(costs.tolist()), tuple(usages))
            for node, costs, usages in zip(self._names, self._costs, self._usages, strict=True)
        )
        edges = tuple(Edge(tail, head, written[table]) for (tail, head), table in self._edges.items())
        return Problem(name, nodes, edges, limit)

    def linear(self, name: str, weights: int) -> LinearProblem:
        """What was added, where every cost is (weights,); nodes and tables that cost nothing may be without."""
        numbers = {table: i for i, table in enumerate(dict.fromkeys(self._edges.values()))}
        cells = [_cells(table.numbers, 2) for table in numbers]
        costs = [_cells(each, 1) for each in self._costs]
        return LinearProblem(
            name,
            tuple(self._names),
            Counts.of(costs, weights),
            np.array([len(each) for each in costs], np.int64),
            tuple((tail, head, numbers[table]) for (tail, head), table in self._edges.items()),
            Counts.of(cells, weights),
            np.array([len(each) for each in cells], np.int64),
        )


def _cells(numbers: IntArray, axes: int) -> IntArray:
    """(cells, weights), or (cells,) of what has no axis of weights: that costs nothing or is forbidden."""
    return numbers.reshape(-1, *numbers.shape[axes:])


def _sum(one: IntArray, other: IntArray) -> IntArray:
    wide = max(one.ndim, other.ndim)
    both = (each if each.ndim == wide else each[..., None] for each in (one, other))
    table: IntArray = np.minimum(sum(both), FORBIDDEN)
    return table
