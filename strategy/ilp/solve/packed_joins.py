"""Joins as long arrays, and what messages need of them: the least of a table along an axis.

A join has four axes; those that it does not need come first and have one line. Its table is `table[start[j]:]`,
row-major, with `lines[j, x]` lines along axis x, whose messages begin at `message[j, x]`; message 0 is always zero.
Node i has the links `link_at[i]:link_at[i + 1]`, each to one axis of one join: `begins[k]` says that no node of the
join comes before it, `ends[k]` that none comes after. Choice c of node `member[j, x]` has the line
`classes[class_at[j, x] + c]`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.joins import Join

AXES = 4
# Above every sum, forbidden ones included.
BIG = 1e300


class FlatJoins(NamedTuple):
    """The arrays; the table is int64 (exact) or float64 (the working copy)."""

    start: IntArray
    table: npt.NDArray[Any]
    lines: IntArray
    message: IntArray
    member: IntArray
    link_at: IntArray
    link_join: IntArray
    link_axis: IntArray
    begins: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]
    class_at: IntArray
    classes: IntArray

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return 1 + int(self.lines[self.member >= 0].sum())

    @property
    def read(self) -> int:
        """Entries of all joins, those that share a table too: what messages in one direction read."""
        return int(self.lines.prod(axis=1).sum())


def flatten_joins(joins: tuple[Join, ...], nodes: tuple[int, ...]) -> FlatJoins:
    """The arrays of joins over `nodes`, the core's ids by position; equal tables are stored once."""
    place = {node: i for i, node in enumerate(nodes)}
    lines, message, member = (np.full((len(joins), AXES), empty, np.int64) for empty in (1, 0, -1))
    class_at = np.zeros((len(joins), AXES), np.int64)
    links: list[list[tuple[int, int]]] = [[] for _ in nodes]
    classes: list[IntArray] = []
    starts: dict[int, int] = {}
    tables: list[IntArray] = []
    cells, messages, choices = 0, 1, 0
    start = np.zeros(len(joins), np.int64)
    for j, join in enumerate(joins):
        if id(join.table) not in starts:
            starts[id(join.table)] = cells
            tables.append(join.table.ravel())
            cells += join.table.size
        start[j] = starts[id(join.table)]
        for axis, (node, of) in enumerate(zip(join.scope, join.classes, strict=True), AXES - len(join.scope)):
            member[j, axis], message[j, axis], class_at[j, axis] = place[node], messages, choices
            lines[j, axis] = join.table.shape[axis - AXES]
            messages += int(lines[j, axis])
            choices += of.size
            classes.append(of)
            links[place[node]].append((j, axis))
    flat = [(i, *link) for i, row in enumerate(links) for link in row]
    owner, link_join, link_axis = np.array(flat, np.int64).reshape(-1, 3).T
    inside = np.where(member < 0, len(nodes), member).min(axis=1), member.max(axis=1)
    return FlatJoins(
        start=start,
        table=np.concatenate(tables) if tables else np.zeros(0, np.int64),
        lines=lines,
        message=message,
        member=member,
        link_at=np.concatenate(([0], np.cumsum([len(row) for row in links]))).astype(np.int64),
        link_join=link_join.copy(),
        link_axis=link_axis.copy(),
        begins=inside[0][link_join] == owner,
        ends=inside[1][link_join] == owner,
        class_at=class_at,
        classes=np.concatenate(classes) if classes else np.zeros(0, np.int64),
    )


@compiled
def marginal(joins: FlatJoins, j: int, axis: int, messages: FloatArray, picks: IntArray, into: FloatArray) -> None:
    """Writes, for every line of an axis, the least of the table less the messages along the other axes.

    Args:
        joins: the arrays.
        j: which join.
        axis: which axis.
        messages: along all axes of all joins.
        picks: -1, or the only line that counts, by axis.
        into: rewritten.
    """
    low, high = np.zeros(AXES, np.int64), joins.lines[j].copy()
    for x in range(AXES):
        if picks[x] >= 0:
            low[x], high[x] = picks[x], picks[x] + 1
    into[: joins.lines[j, axis]] = BIG
    last = joins.lines[j, 3]
    own = messages[joins.message[j, 3] : joins.message[j, 3] + last]
    for a in range(low[0], high[0]):
        in_a = 0.0 if axis == 0 else messages[joins.message[j, 0] + a]
        for b in range(low[1], high[1]):
            in_b = in_a if axis == 1 else in_a + messages[joins.message[j, 1] + b]
            for c in range(low[2], high[2]):
                given = in_b if axis == 2 else in_b + messages[joins.message[j, 2] + c]
                at = joins.start[j] + ((a * joins.lines[j, 1] + b) * joins.lines[j, 2] + c) * last
                line = joins.table[at : at + last]
                if axis == 3:
                    for d in range(low[3], high[3]):
                        into[d] = min(into[d], line[d] - given)
                else:
                    least = BIG
                    for d in range(low[3], high[3]):
                        least = min(least, line[d] - own[d])
                    k = a if axis == 0 else (b if axis == 1 else c)
                    into[k] = min(into[k], least - given)


@compiled
def line_in(joins: FlatJoins, j: int, axis: int, picks: IntArray) -> int:
    """The line along an axis of what its node takes; 0 where there is no node."""
    node = joins.member[j, axis]
    return int(joins.classes[joins.class_at[j, axis] + picks[node]]) if node >= 0 else 0


@compiled
def cell_of(joins: FlatJoins, j: int, picks: IntArray) -> float:
    """The entry of a join beside the choices of all nodes."""
    cell = 0
    for axis in range(AXES):
        cell = cell * joins.lines[j, axis] + line_in(joins, j, axis, picks)
    return float(joins.table[joins.start[j] + cell])
