"""The checker's working problem, written from the definitions in `proof`; nothing here is shared with the solver.

All numbers are int64. A forbidden entry is exactly `FORBIDDEN`; every other one stays within `LIMIT`, which is checked
wherever numbers are added, so that nothing wraps around whatever a proof asks for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.proof import IntArray
from strategy.ilp.problem import FORBIDDEN, Problem

LIMIT = 4 * 10**17


@dataclass(slots=True)
class Working:
    """Live nodes by id; a table in both directions; amounts by (first row, row after the last).

    Arrays are replaced, never written in place, except `room`. `constant` is the cost of what was eliminated.
    """

    costs: dict[int, IntArray]
    tables: dict[int, dict[int, IntArray]]
    spans: dict[int, dict[tuple[int, int], IntArray]]
    room: IntArray
    constant: int = 0

    def copy(self) -> Working:
        """An independent working problem that shares the arrays."""
        tables = {node: dict(row) for node, row in self.tables.items()}
        spans = {node: dict(held) for node, held in self.spans.items()}
        return Working(dict(self.costs), tables, spans, self.room.copy(), self.constant)

    def pairs(self) -> list[tuple[int, int]]:
        """(i, j), i < j, of every table, ascending."""
        return sorted((one, other) for one, row in self.tables.items() for other in row if one < other)

    def put(self, one: int, other: int, table: IntArray) -> None:
        """Writes a table (C_one, C_other)."""
        self.tables[one][other] = table
        self.tables[other][one] = table.T

    def add_table(self, one: int, other: int, table: IntArray) -> None:
        """Adds to the table between two nodes, if there is one."""
        present = self.tables[one].get(other)
        self.put(one, other, table if present is None else plus(present, table))

    def remove(self, node: int) -> None:
        """Takes a node and its tables away."""
        for other in self.tables.pop(node):
            del self.tables[other][node]
        del self.costs[node], self.spans[node]

    def keep(self, node: int, kept: IntArray) -> None:
        """Restricts a node to some choices, by index; none is possible too."""
        self.costs[node] = self.costs[node][kept]
        for other, table in self.tables[node].items():
            self.put(node, other, table.take(kept, axis=0))
        held, self.spans[node] = self.spans[node], {}
        for rows, amounts in held.items():
            self.add_span(node, rows, amounts[kept])

    def add_span(self, node: int, rows: tuple[int, int], amounts: IntArray) -> None:
        """Adds what a node holds; the least of it comes out of the room."""
        present = self.spans[node].pop(rows, None)
        amounts = amounts if present is None else plus(amounts, present)
        if amounts.size == 0:
            return
        least = amounts.min()
        self.room[rows[0] : rows[1]] -= least
        if amounts.max() > least:
            self.spans[node][rows] = amounts - least

    def keep_rows(self, rows: IntArray) -> None:
        """Forgets all other rows, given ascending."""
        position = np.searchsorted(rows, np.arange(self.room.size + 1)).tolist()
        self.room = self.room[rows]
        for node, spans in self.spans.items():
            self.spans[node] = {}
            for (first, last), amounts in spans.items():
                if position[first] < position[last]:
                    self.add_span(node, (position[first], position[last]), amounts)

    def is_impossible(self) -> bool:
        """Whether a node has no choice, or none that is allowed, or some row has negative room."""
        stuck = self.constant >= FORBIDDEN or any((cost >= FORBIDDEN).all() for cost in self.costs.values())
        return stuck or bool((self.room < 0).any())


def plus(one: IntArray, other: IntArray) -> IntArray:
    """The broadcast sum; forbidden entries stay forbidden."""
    forbidden = (one >= FORBIDDEN) | (other >= FORBIDDEN)
    total: IntArray = np.where(forbidden, 0, one + other)
    if total.size and (total.max() > LIMIT or total.min() < -LIMIT):
        raise CertificateError("the sum of two entries is too large to be exact", expected=f"at most {LIMIT}")
    return np.where(forbidden, FORBIDDEN, total)


def minus(one: IntArray, other: IntArray) -> IntArray:
    """The broadcast difference to entries that are not forbidden."""
    return plus(one, -other)


def begin(problem: Problem) -> Working:
    """The working problem that a proof starts from.

    Raises:
        CertificateError: lengths that disagree, or numbers too large to be added exactly.
    """
    count = len(problem.nodes)
    work = Working(
        {i: _entries(node.costs) for i, node in enumerate(problem.nodes)},
        {i: {} for i in range(count)},
        {i: {} for i in range(count)},
        np.zeros(0, np.int64),
    )
    for k, edge in enumerate(problem.edges):
        if not (0 <= edge.tail < count and 0 <= edge.head < count):
            raise CertificateError("an edge names an unknown node", where=f"edge {k}")
        table = _entries(edge.costs)
        sizes = work.costs[edge.tail].size, work.costs[edge.head].size
        if table.size != sizes[0] * sizes[1]:
            raise CertificateError("a table of the wrong size", where=f"edge {k}", got=table.size, expected=f"{sizes}")
        table = table.reshape(sizes)
        if edge.tail == edge.head:
            work.costs[edge.tail] = plus(work.costs[edge.tail], np.diagonal(table))
        else:
            work.add_table(edge.tail, edge.head, table)
    if problem.limit is not None:
        _begin_memory(work, problem, problem.limit)
    return work


def _begin_memory(work: Working, problem: Problem, limit: int) -> None:
    """One row per instant at which something begins to be held."""
    usages = [(i, usage) for i, node in enumerate(problem.nodes) for usage in node.usages if usage.begin < usage.end]
    total = 0
    for i, usage in usages:
        if len(usage.amounts) != work.costs[i].size or min(usage.amounts) < 0:
            raise CertificateError("memory that does not fit the choices", where=f"node {i}")
        total += max(usage.amounts)
    if total > LIMIT:
        raise CertificateError("memory is too large to be added exactly", got=total, expected=f"at most {LIMIT}")
    begins = sorted({usage.begin for _, usage in usages})
    position = {instant: row for row, instant in enumerate(begins)}
    ends = np.searchsorted(begins, [usage.end for _, usage in usages]).tolist()
    work.room = np.full(len(begins), min(limit, LIMIT), np.int64)
    for (i, usage), end in zip(usages, ends, strict=True):
        work.add_span(i, (position[usage.begin], end), np.array(usage.amounts, np.int64))


def stretches(work: Working, node: int) -> Iterable[tuple[int, IntArray]]:
    """(least room, what each choice holds) over every stretch of rows on which a node's amounts are constant."""
    spans = work.spans[node]
    bounds = sorted(set(itertools.chain.from_iterable(spans)))
    for first, last in itertools.pairwise(bounds):
        held = [amounts for rows, amounts in spans.items() if rows[0] <= first and last <= rows[1]]
        if held:
            yield int(work.room[first:last].min()), np.sum(held, axis=0)


def legal(entries: IntArray) -> npt.NDArray[np.bool_]:
    """Which entries are not forbidden."""
    return np.asarray(entries < FORBIDDEN)


def _entries(values: tuple[int, ...]) -> IntArray:
    """Costs as they are added: forbidden ones exactly `FORBIDDEN`, the others within the limit."""
    try:
        entries = np.minimum(np.array(values, np.int64), FORBIDDEN)
    except OverflowError:
        entries = np.array([max(min(value, FORBIDDEN), -FORBIDDEN) for value in values], np.int64)
    finite = entries[entries < FORBIDDEN]
    if finite.size and (finite.max() > LIMIT or finite.min() < -LIMIT):
        raise CertificateError("a cost is too large to be added exactly", got=int(finite.max()))
    return entries
