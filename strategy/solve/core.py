"""The working form of a problem: arrays that reductions shrink, and the way back to a full choice.

Everything is in int64. Entries of `FORBIDDEN` saturate: `add` never leaves them, so that sums of forbidden
entries neither overflow nor turn legal. Node costs and tables are kept at minimum zero (what they lose is in
`constant`), hence every finite sum stays below the bound that `build_core` checks once.

Shapes: C_i choices of node i; a table between i and j is (C_i, C_j); a span's amounts are (C_i,).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strategy.errors import InputError
from strategy.problem import FORBIDDEN, Problem

IntArray = npt.NDArray[np.int64]

# Room for every sum of costs, with multipliers' penalties of the same size on top.
MAX_TOTAL_COST = 10**17


# Memory that a node holds above its least amount: (first, last) half-open rows -> one amount per choice.
Spans = dict[tuple[int, int], IntArray]


class NoChoiceError(Exception):
    """A node has no choice left: forbidden pairs or memory exclude all of them. Caught within this package."""


class OutOfTimeError(Exception):
    """The deadline has passed; raised only where the core is whole. Caught within this package."""


@dataclass(frozen=True, slots=True)
class Lift:
    """One step back: `node` takes `picks[values of given]`, in the index space before the step."""

    node: int
    given: tuple[int, ...]
    picks: IntArray


@dataclass(slots=True)
class Core:
    """Live nodes by id, tables in both directions, memory rows, and the trail that leads back.

    `room[r]` is what row r leaves beyond the least amounts. Tables, costs and amounts are replaced, never written in
    place, so that `copy` may share them.
    """

    costs: dict[int, IntArray]
    tables: dict[int, dict[int, IntArray]]
    spans: dict[int, Spans]
    room: IntArray
    constant: int = 0
    trail: list[Lift] = field(default_factory=list)
    deadline_s: float = math.inf

    def check_time(self) -> None:
        """Raises OutOfTimeError once `deadline_s` (time.perf_counter) has passed."""
        if time.perf_counter() > self.deadline_s:
            raise OutOfTimeError

    def copy(self) -> Core:
        """An independent core with shared (immutable) arrays and the same trail."""
        tables = {node: dict(row) for node, row in self.tables.items()}
        spans = {node: dict(held) for node, held in self.spans.items()}
        return Core(dict(self.costs), tables, spans, self.room.copy(), self.constant, list(self.trail))

    def without_memory(self) -> Core:
        """The relaxation in which memory is unlimited."""
        free = self.copy()
        free.spans = {node: {} for node in self.costs}
        free.room = np.zeros(0, np.int64)
        return free

    def set_table(self, one: int, other: int, table: IntArray) -> None:
        """Puts `table` (C_one, C_other) between two nodes, in both directions."""
        self.tables[one][other] = table
        self.tables[other][one] = table.T

    def add_table(self, one: int, other: int, table: IntArray) -> None:
        """Adds `table` to what is between two nodes."""
        present = self.tables[one].get(other)
        self.set_table(one, other, table if present is None else add(present, table))

    def drop_table(self, one: int, other: int) -> None:
        """Removes what is between two nodes."""
        del self.tables[one][other]
        del self.tables[other][one]

    def drop_node(self, node: int, given: tuple[int, ...], picks: IntArray) -> None:
        """Removes a node whose value follows from those of `given`."""
        for other in self.tables.pop(node):
            del self.tables[other][node]
        del self.costs[node], self.spans[node]
        self.trail.append(Lift(node, given, picks))

    def keep(self, node: int, kept: IntArray) -> None:
        """Restricts a node to the choices `kept`.

        Raises:
            NoChoiceError: nothing is kept.
        """
        if kept.size == 0:
            raise NoChoiceError
        self.costs[node] = self.costs[node][kept]
        for other, table in list(self.tables[node].items()):
            self.set_table(node, other, np.ascontiguousarray(table[kept]))
        held, self.spans[node] = self.spans[node], {}
        for (first, last), amounts in held.items():
            self.hold(node, first, last, amounts[kept])
        self.trail.append(Lift(node, (node,), kept))

    def hold(self, node: int, first: int, last: int, amounts: IntArray) -> None:
        """Adds memory of a node in the rows [first, last); what every choice holds comes out of the rows' room."""
        spans = self.spans[node]
        if (first, last) in spans:
            amounts = amounts + spans.pop((first, last))
        least = int(amounts.min())
        if least:
            self.room[first:last] -= least
        if amounts.max() > least:
            spans[first, last] = amounts - least

    def load(self, picks: dict[int, int]) -> IntArray:
        """Memory per row, above the least amounts, when node i takes `picks[i]`."""
        change = np.zeros(len(self.room) + 1, np.int64)
        for node, spans in self.spans.items():
            for (first, last), amounts in spans.items():
                change[first] += amounts[picks[node]]
                change[last] -= amounts[picks[node]]
        return change[:-1].cumsum()

    def lift(self, picks: dict[int, int]) -> dict[int, int]:
        """The full choice (original indices) that the choice `picks` of the live nodes stands for."""
        full = dict(picks)
        for step in reversed(self.trail):
            full[step.node] = int(step.picks[tuple(full[given] for given in step.given)])
        return full


def add(one: IntArray, other: IntArray) -> IntArray:
    """Broadcast sum in which forbidden entries stay forbidden."""
    total: IntArray = np.asarray(one + other)
    return np.minimum(total, FORBIDDEN, out=total)


def build_core(problem: Problem) -> Core:
    """The working form: parallel edges merged, loops folded into their node, binding memory rows only.

    Raises:
        InputError: lengths that disagree, an unknown node, negative memory, or costs whose sum does not fit.
        NoChoiceError: a node has no choice that is allowed.
    """
    _validate(problem)
    count = len(problem.nodes)
    core = Core(
        costs={i: _saturated(node.costs) for i, node in enumerate(problem.nodes)},
        tables={i: {} for i in range(count)},
        spans={i: {} for i in range(count)},
        room=np.zeros(0, np.int64),
    )
    total = sum(_largest(cost) for cost in core.costs.values())
    for edge in problem.edges:
        table = _saturated(edge.costs).reshape(len(problem.nodes[edge.tail].costs), -1)
        total += _largest(table)
        if edge.tail == edge.head:
            core.costs[edge.tail] = add(core.costs[edge.tail], np.diagonal(table))
        else:
            core.add_table(edge.tail, edge.head, table)
    if total > MAX_TOTAL_COST:
        raise InputError(
            "costs are too large to be added exactly",
            where=f"problem {problem.name!r}",
            got=total,
            expected=f"largest legal costs that sum to at most {MAX_TOTAL_COST}",
            hint="use a coarser unit of cost",
        )
    for node, cost in core.costs.items():
        legal = np.flatnonzero(cost < FORBIDDEN)
        if legal.size < cost.size:
            core.keep(node, legal)
    normalise(core, list(core.costs))
    if problem.limit is not None:
        _add_memory(core, problem, min(problem.limit, MAX_TOTAL_COST))
    return core


def normalise(core: Core, nodes: Sequence[int]) -> None:
    """Moves each table's row and column minima into the nodes, and the nodes' minima into the constant.

    Rows that differed by a constant become equal, which is what lets an edge be written by few classes. An edge with
    nothing left is dropped.

    Raises:
        NoChoiceError: a node's choices are all forbidden.
    """
    for node in nodes:
        for other, table in list(core.tables[node].items()):
            rows = table.min(axis=1)
            rest = _less(table, rows[:, None])
            columns = rest.min(axis=0)
            core.costs[node] = add(core.costs[node], rows)
            core.costs[other] = add(core.costs[other], columns)
            rest = _less(rest, columns[None, :])
            if rest.any():
                core.set_table(node, other, rest)
            else:
                core.drop_table(node, other)
    for node, cost in core.costs.items():
        least = int(cost.min())
        if least >= FORBIDDEN:
            raise NoChoiceError
        if least:
            core.costs[node] = _less(cost, np.int64(least))
            core.constant += least


def _less(table: IntArray, amount: IntArray | np.int64) -> IntArray:
    """`table - amount`, forbidden entries staying forbidden; a line without legal entry becomes zero.

    Such a line's own cost is then forbidden, so the zeros cannot be chosen.
    """
    return np.where((table >= FORBIDDEN) & (amount < FORBIDDEN), FORBIDDEN, table - amount)


def _add_memory(core: Core, problem: Problem, limit: int) -> None:
    """Rows for the times at which the limit can bind: maximal live sets whose largest amounts exceed it.

    Two instants with the same live set are one row, and among nested live sets only the largest matters: those
    are the instants that directly follow a beginning and directly precede an end.
    """
    kept = {step.node: step.picks for step in core.trail}
    items: list[tuple[int, int, int, IntArray]] = []
    for i, node in enumerate(problem.nodes):
        for usage in node.usages:
            amounts = _saturated(usage.amounts)
            amounts = amounts[kept[i]] if i in kept else amounts
            if usage.begin < usage.end and amounts.max() > 0:
                items.append((i, usage.begin, usage.end, amounts))
    begins, ends = {item[1] for item in items}, {item[2] for item in items}
    times = sorted(begins | ends)
    peaks = [time for time, after in itertools.pairwise(times) if time in begins and after in ends]
    first = np.searchsorted(peaks, [item[1] for item in items])
    last = np.searchsorted(peaks, [item[2] for item in items])
    most = np.zeros(len(peaks) + 1, np.int64)
    for (_, _, _, amounts), begin, end in zip(items, first, last, strict=True):
        most[begin] += amounts.max()
        most[end] -= amounts.max()
    binding = np.cumsum(most)[:-1] > limit
    row = np.concatenate(([0], np.cumsum(binding)))
    core.room = np.full(int(binding.sum()), limit, np.int64)
    for (node_id, _, _, amounts), begin, end in zip(items, first, last, strict=True):
        if row[begin] < row[end]:
            core.hold(node_id, int(row[begin]), int(row[end]), amounts)


def drop_slack_rows(core: Core) -> None:
    """Forgets the rows that can no longer bind, and rows that another one with the same items implies.

    Raises:
        NoChoiceError: even the least amounts exceed a row.
    """
    rows = len(core.room)
    if rows == 0:
        return
    if core.room.min() < 0:
        raise NoChoiceError
    most = np.zeros(rows + 1, np.int64)
    edges = np.zeros(rows + 1, np.bool_)
    for spans in core.spans.values():
        for (first, last), amounts in spans.items():
            most[first] += amounts.max()
            most[last] -= amounts.max()
            edges[[first, last]] = True
    kept = np.cumsum(most)[:-1] > core.room
    start = 0
    for row in range(1, rows + 1):
        if row == rows or edges[row]:
            tightest = start + int(np.argmin(core.room[start:row]))
            kept[start:row] &= np.arange(start, row) == tightest
            start = row
    if kept.all():
        return
    new = np.concatenate(([0], np.cumsum(kept)))
    core.room = core.room[kept]
    for node, spans in core.spans.items():
        core.spans[node] = {}
        for (first, last), amounts in spans.items():
            if new[first] < new[last]:
                core.hold(node, int(new[first]), int(new[last]), amounts)


def _saturated(values: Sequence[int]) -> IntArray:
    """`values` in int64, with everything beyond `FORBIDDEN` brought back to it."""
    try:
        return np.minimum(np.array(values, np.int64), FORBIDDEN)
    except OverflowError:
        return np.array([min(value, FORBIDDEN) for value in values], np.int64)


def _largest(values: IntArray) -> int:
    """The largest legal magnitude."""
    legal = values[values < FORBIDDEN]
    return int(np.abs(legal).max()) if legal.size else 0


def _validate(problem: Problem) -> None:
    """Raises InputError unless the lengths agree and the memory can be added."""
    where = f"problem {problem.name!r}"
    held = 0
    for i, node in enumerate(problem.nodes):
        if not node.costs:
            raise InputError("a node has no choices", where=f"{where}, node {i} ({node.name})")
        for usage in node.usages:
            if len(usage.amounts) != len(node.costs) or min(usage.amounts) < 0:
                raise InputError(
                    "memory does not fit the choices",
                    where=f"{where}, node {i} ({node.name})",
                    got=usage.amounts,
                    expected=f"{len(node.costs)} amounts >= 0",
                )
            held += max(usage.amounts)
    if problem.limit is not None and problem.limit < 0:
        raise InputError("a negative memory limit", where=where, got=problem.limit, expected="at least 0, or None")
    if held > MAX_TOTAL_COST:
        raise InputError("memory is too large to be added exactly", where=where, got=held, expected="at most 10^17")
    count = len(problem.nodes)
    for k, edge in enumerate(problem.edges):
        if not (0 <= edge.tail < count and 0 <= edge.head < count):
            raise InputError("an edge names an unknown node", where=f"{where}, edge {k}", got=(edge.tail, edge.head))
        cells = len(problem.nodes[edge.tail].costs) * len(problem.nodes[edge.head].costs)
        if len(edge.costs) != cells:
            raise InputError(
                "an edge's table has the wrong size",
                where=f"{where}, edge {k}",
                got=len(edge.costs),
                expected=f"{cells} costs",
            )
