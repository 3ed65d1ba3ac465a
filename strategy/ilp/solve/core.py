"""Core, the working form of a problem: arrays that reductions shrink, the way back, and the proof so far.

Everything is in int64. Entries of `FORBIDDEN` saturate: `add` never leaves them, so that sums of forbidden
entries neither overflow nor turn legal. Node costs and tables are kept at minimum zero (what they lose is in
`constant`), hence every finite sum stays below the bound that `build_core` checks once.

Whatever shrinks a core says so in `steps`, in the language of `strategy.ilp.certificate.proof`: replaying them on the
problem gives the core's tables, rows and spans, and its costs up to a constant per node.

Shapes: C_i choices of node i; a table between i and j is (C_i, C_j); a span's amounts are (C_i,).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.ilp.certificate.proof import Bound, Drop, Fix, KeepRows, Normalise, Step
from strategy.ilp.problem import FORBIDDEN

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Room for every sum of costs, with multipliers' penalties of the same size on top.
MAX_TOTAL_COST = 10**17


# Memory that a node holds above its least amount: (first, last) half-open rows -> one amount per choice.
Spans = dict[tuple[int, int], IntArray]


class NoChoiceError(Exception):
    """A node has no choice left: forbidden pairs or memory exclude all of them. Caught within this package."""


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
    place, so that `copy` may share them. `changed` collects the nodes that a reduction should look at again.
    """

    costs: dict[int, IntArray]
    tables: dict[int, dict[int, IntArray]]
    spans: dict[int, Spans]
    room: IntArray
    constant: int = 0
    trail: list[Lift] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    budget: Budget = UNLIMITED
    cost_ceiling: int = MAX_TOTAL_COST  # no legal choice of the whole problem costs more

    def check_time(self) -> None:
        """Raises OutOfTimeError once the budget's time is up; called only where the core is whole."""
        if self.budget.is_over():
            raise OutOfTimeError("the time is up")

    def copy(self) -> Core:
        """An independent core with shared (immutable) arrays, the same trail and the same steps."""
        tables = {node: dict(row) for node, row in self.tables.items()}
        spans = {node: dict(held) for node, held in self.spans.items()}
        return Core(
            dict(self.costs), tables, spans, self.room.copy(), self.constant, list(self.trail), list(self.steps),
            budget=self.budget, cost_ceiling=self.cost_ceiling,
        )  # fmt: skip

    def without_memory(self) -> Core:
        """The relaxation in which memory is unlimited."""
        free = self.copy()
        free.keep_rows(np.zeros(len(free.room), np.bool_))
        return free

    def branch(self, node: int, kept: IntArray) -> Core:
        """A child of branch and bound, in which `node` takes one of `kept`; its steps begin anew.

        Raises:
            NoChoiceError: nothing is kept.
        """
        part = self.copy()
        part.steps = []
        part.keep_choices(node, kept)
        return part

    def pairs(self) -> list[tuple[int, int]]:
        """(i, j) with i < j for every table, ascending: the order in which messages are laid out."""
        return sorted((one, other) for one, row in self.tables.items() for other in row if one < other)

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

    def drop_node(self, node: int, given: tuple[int, ...], picks: IntArray, step: Step) -> None:
        """Removes a node whose value follows from those of `given`, by `step`."""
        neighbours = self.tables.pop(node)
        for other in neighbours:
            del self.tables[other][node]
        del self.costs[node], self.spans[node]
        self.changed.update(neighbours)
        self.trail.append(Lift(node, given, picks))
        self.steps.append(step)

    def drop_choices(self, node: int, dropped: IntArray, by: IntArray) -> None:
        """Takes choices from a node, each for a reason as in `proof.Drop`.

        Raises:
            NoChoiceError: nothing is left.
        """
        self.steps.append(Drop(node, dropped, by))
        self.keep_choices(node, np.delete(np.arange(self.costs[node].size), dropped))

    def fix_choices(self, bound: Bound, below: int, kept: Mapping[int, IntArray]) -> None:
        """Restricts nodes to the choices `kept`, since `bound` shows that all others cost at least `below`.

        Raises:
            NoChoiceError: a node keeps nothing.
        """
        dropped = {node: np.delete(np.arange(self.costs[node].size), few) for node, few in sorted(kept.items())}
        dropped = {node: choices for node, choices in dropped.items() if choices.size}
        if dropped:
            self.steps.append(Fix(bound, below, np.array(list(dropped), np.int64), tuple(dropped.values())))
        for node in dropped:
            self.keep_choices(node, kept[node])

    def keep_choices(self, node: int, kept: IntArray) -> None:
        """Restricts a node to the choices `kept`; the reason is the caller's to record.

        Raises:
            NoChoiceError: nothing is kept.
        """
        if kept.size == 0:
            raise NoChoiceError
        self.costs[node] = self.costs[node][kept]
        for other, table in self.tables[node].items():
            self.set_table(node, other, table.take(kept, axis=0))
        held, self.spans[node] = self.spans[node], {}
        for (first, last), amounts in held.items():
            self.add_span(node, first, last, amounts[kept])
        self.changed.add(node)
        self.changed.update(self.tables[node])
        self.trail.append(Lift(node, (node,), kept))

    def add_span(self, node: int, first: int, last: int, amounts: IntArray) -> None:
        """Adds memory of a node in the rows [first, last); what every choice holds comes out of the rows' room."""
        spans = self.spans[node]
        if (first, last) in spans:
            amounts = amounts + spans.pop((first, last))
        least = int(amounts.min())
        if least:
            self.room[first:last] -= least
            amounts = amounts - least
        if amounts.any():
            spans[first, last] = amounts

    def keep_rows(self, kept: npt.NDArray[np.bool_]) -> None:
        """Forgets the other memory rows."""
        if kept.all():
            return
        self.steps.append(KeepRows(np.flatnonzero(kept)))
        new = np.concatenate(([0], np.cumsum(kept))).tolist()
        self.room = self.room[kept]
        for node, spans in self.spans.items():
            moved: Spans = {}
            crowded = False
            for (first, last), amounts in spans.items():
                rows = new[first], new[last]
                crowded |= rows in moved
                if rows[0] < rows[1]:
                    moved[rows] = amounts + moved[rows] if rows in moved else amounts
            self.spans[node] = moved
            if crowded:
                self.spans[node] = {}
                for (first, last), amounts in moved.items():
                    self.add_span(node, first, last, amounts)
            if len(self.spans[node]) < len(spans):
                self.changed.add(node)

    def normalise(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Moves row minima, then column minima of tables into the nodes, and the nodes' minima into the constant.

        Rows that differed by a constant become equal, which is what lets an edge be written by few classes. A line
        without a legal entry is left alone; a table with nothing left is dropped.

        Raises:
            NoChoiceError: a node's choices are all forbidden.
        """
        touched: list[tuple[int, int]] = []
        for k, (one, other) in enumerate(pairs):
            if k % 256 == 0 and self.budget.is_over():
                break
            table = self.tables[one][other]
            rows = _least(table, axis=1)
            rest = subtract(table, rows[:, None]) if rows.any() else table
            columns = _least(rest, axis=0)
            rest = subtract(rest, columns[None, :]) if columns.any() else rest
            if rest is not table:
                self.costs[one] = add(self.costs[one], rows)
                self.costs[other] = add(self.costs[other], columns)
                self.set_table(one, other, rest)
            elif table.any():
                continue
            touched.append((one, other))
            if not rest.any():
                self.drop_table(one, other)
                self.changed.update((one, other))
        if touched:
            ones, others = np.array(touched, np.int64).T
            self.steps.append(Normalise(ones, others))
        self.subtract_minima()

    def subtract_minima(self) -> None:
        """Moves the nodes' minima into the constant.

        Raises:
            NoChoiceError: a node's choices are all forbidden.
        """
        for node, cost in self.costs.items():
            least = int(cost.min())
            if least >= FORBIDDEN:
                raise NoChoiceError
            if least:
                self.costs[node] = subtract(cost, np.int64(least))
                self.constant += least

    def load(self, picks: Mapping[int, int]) -> IntArray:
        """Memory per row, above the least amounts, when node i takes `picks[i]`."""
        change = np.zeros(len(self.room) + 1, np.int64)
        for node, spans in self.spans.items():
            for (first, last), amounts in spans.items():
                change[first] += amounts[picks[node]]
                change[last] -= amounts[picks[node]]
        return change[:-1].cumsum()

    def lift(self, picks: Mapping[int, int]) -> dict[int, int]:
        """The full choice (original indices) that the choice `picks` of the live nodes stands for."""
        full = dict(picks)
        for step in reversed(self.trail):
            full[step.node] = int(step.picks[tuple(full[given] for given in step.given)])
        return full


def add(one: IntArray, other: IntArray) -> IntArray:
    """Broadcast sum, of entries >= 0, in which forbidden entries stay forbidden."""
    total: IntArray = np.asarray(one + other)
    return np.minimum(total, FORBIDDEN, out=total)


def _least(table: IntArray, *, axis: int) -> IntArray:
    """Minima along an axis; 0 for a line without a legal entry."""
    least: IntArray = table.min(axis=axis)
    least[least >= FORBIDDEN] = 0
    return least


def subtract(table: IntArray, amount: IntArray | np.int64) -> IntArray:
    """`table - amount`, forbidden entries staying forbidden."""
    rest = table - amount
    rest[table >= FORBIDDEN] = FORBIDDEN
    return rest
