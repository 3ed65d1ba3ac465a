"""Packed joins: tables over three or four nodes as long arrays, and their min-marginals, which messages are made of.

A join has four axes; those that it does not need come first, with one line and no node. The lines of an axis are the
classes of its node's choices (`joins.Join`); messages go to lines.

Shapes: J joins with U cells in all, L links (an axis of a join, seen from its node), N nodes, M messages, K classes in
all. All are int64 but for the cells X, which are int64 in the exact arrays and float64 in the working copy:

    table_at    (J,)     where the cells of a join begin, in `table`; equal tables are stored once
    table       (U,) X   of join j a table (lines of axis 0, ..., of axis 3), row-major
    num_lines   (J, 4)   the lines of an axis
    message_at  (J, 4)   where the messages to the lines of an axis begin; 0 of an axis without node, and message 0 is 0
    member      (J, 4)   the node of an axis, or -1
    link_at     (N+1,)   the links of node i: link_at[i] <= k < link_at[i + 1]
    link_join   (L,)     the join of a link
    link_axis   (L,)     the axis of a link
    is_first    (L,)     bool: no node of the join comes before the link's
    is_last     (L,)     bool: no node of the join comes after the link's
    class_at    (J, 4)   where the classes of an axis' choices begin, in `classes`
    classes     (K,)     the line of each choice
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import in_place
from strategy.base.identity import Identity
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.joins import Join

AXES = 4
# Above every sum of legal costs and weighted excesses, forbidden cells included.
BIG = 1e300


class PackedJoins(NamedTuple):
    """The arrays, with shapes as above."""

    table_at: IntArray
    table: npt.NDArray[Any]
    num_lines: IntArray
    message_at: IntArray
    member: IntArray
    link_at: IntArray
    link_join: IntArray
    link_axis: IntArray
    is_first: npt.NDArray[np.bool_]
    is_last: npt.NDArray[np.bool_]
    class_at: IntArray
    classes: IntArray

    @property
    def num_messages(self) -> int:
        """M: how many messages there are, the zero one included."""
        return 1 + int(self.num_lines[self.member >= 0].sum())

    @property
    def entries_read(self) -> int:
        """Entries of all joins, those that share a table too: what messages in one direction read."""
        return int(self.num_lines.prod(axis=1).sum())


def pack_joins(joins: tuple[Join, ...], nodes: tuple[int, ...]) -> PackedJoins:
    """The arrays of joins over `nodes`, the core's ids by position; equal tables are stored once."""
    position = {node: i for i, node in enumerate(nodes)}
    lines, message, member = (np.full((len(joins), AXES), empty, np.int64) for empty in (1, 0, -1))
    class_at = np.zeros((len(joins), AXES), np.int64)
    links: list[list[tuple[int, int]]] = [[] for _ in nodes]
    classes: list[IntArray] = []
    starts: dict[Identity, int] = {}
    tables: list[IntArray] = []
    cells, messages, choices = 0, 1, 0
    start = np.zeros(len(joins), np.int64)
    for j, join in enumerate(joins):
        shared = Identity(join.table)
        if shared not in starts:
            starts[shared] = cells
            tables.append(join.table.ravel())
            cells += join.table.size
        start[j] = starts[shared]
        for axis, (node, of) in enumerate(zip(join.scope, join.classes, strict=True), AXES - len(join.scope)):
            member[j, axis], message[j, axis], class_at[j, axis] = position[node], messages, choices
            lines[j, axis] = join.table.shape[axis - AXES]
            messages += int(lines[j, axis])
            choices += of.size
            classes.append(of)
            links[position[node]].append((j, axis))
    numbered = [(i, *link) for i, row in enumerate(links) for link in row]
    owner, link_join, link_axis = np.array(numbered, np.int64).reshape(-1, 3).T
    inside = np.where(member < 0, len(nodes), member).min(axis=1), member.max(axis=1)
    return PackedJoins(
        table_at=start,
        table=np.concatenate(tables) if tables else np.zeros(0, np.int64),
        num_lines=lines,
        message_at=message,
        member=member,
        link_at=np.concatenate(([0], np.cumsum([len(row) for row in links]))).astype(np.int64),
        link_join=link_join.copy(),
        link_axis=link_axis.copy(),
        is_first=inside[0][link_join] == owner,
        is_last=inside[1][link_join] == owner,
        class_at=class_at,
        classes=np.concatenate(classes) if classes else np.zeros(0, np.int64),
    )


@in_place
def _lines(count: int, pick: int) -> tuple[int, int]:
    """From which line of so many to which: all, or one that is picked (else -1)."""
    return (0, count) if pick < 0 else (pick, pick + 1)


@in_place
def min_marginal(
    joins: PackedJoins, j: int, axis: int, messages: FloatArray, picks: IntArray, into: FloatArray
) -> None:
    """Min-marginals along one axis: for every line, the least of the table less the messages along the other axes.

    Args:
        joins: the working copy.
        j: which join.
        axis: which axis.
        messages: (M,) float64, along all axes of all joins.
        picks: (4,) int64, by axis -1, or the only line that counts.
        into: (at least the lines of the axis,) float64, rewritten.
    """
    for x in range(joins.num_lines[j, axis]):
        into[x] = BIG
    first_a, past_a = _lines(joins.num_lines[j, 0], picks[0])
    first_b, past_b = _lines(joins.num_lines[j, 1], picks[1])
    first_c, past_c = _lines(joins.num_lines[j, 2], picks[2])
    first_d, past_d = _lines(joins.num_lines[j, 3], picks[3])
    own = joins.message_at[j, 3]
    for a in range(first_a, past_a):
        in_a = 0.0 if axis == 0 else messages[joins.message_at[j, 0] + a]
        for b in range(first_b, past_b):
            in_b = in_a if axis == 1 else in_a + messages[joins.message_at[j, 1] + b]
            for c in range(first_c, past_c):
                given = in_b if axis == 2 else in_b + messages[joins.message_at[j, 2] + c]
                row = (a * joins.num_lines[j, 1] + b) * joins.num_lines[j, 2] + c
                at = joins.table_at[j] + row * joins.num_lines[j, 3]
                if axis == 3:
                    for d in range(first_d, past_d):
                        into[d] = min(into[d], joins.table[at + d] - given)
                else:
                    least = BIG
                    for d in range(first_d, past_d):
                        least = min(least, joins.table[at + d] - messages[own + d])
                    k = a if axis == 0 else (b if axis == 1 else c)
                    into[k] = min(into[k], least - given)


@in_place
def line_of_pick(joins: PackedJoins, j: int, axis: int, picks: IntArray) -> int:
    """The line along an axis of what its node takes, by `picks` (N,); 0 where there is no node."""
    node = joins.member[j, axis]
    return int(joins.classes[joins.class_at[j, axis] + picks[node]]) if node >= 0 else 0


@in_place
def cell_of(joins: PackedJoins, j: int, picks: IntArray) -> float:
    """The entry of a join at the choices `picks` (N,) of all nodes."""
    cell = 0
    for axis in range(AXES):
        cell = cell * joins.num_lines[j, axis] + line_of_pick(joins, j, axis, picks)
    return float(joins.table[joins.table_at[j] + cell])
