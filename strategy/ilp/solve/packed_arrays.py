"""Packed arrays: a core as a few long arrays (compressed sparse rows), the form that every hot loop reads.

Nodes are numbered by when their memory is first held, so that an order over nodes follows the program and not the file.

Shapes: N nodes with C choices in all (C_i of node i), E edges with T cells in all, S memory spans with A amounts in
all, R memory rows. Indices and offsets are int64; the entries X are int64 in the exact arrays and float64 in the
working copy. An offset array has one entry more than there are pieces, so that piece k is `at[k]:at[k + 1]`:

    choice_at   (N+1,)   the choices of node i, in `cost`; a choice is named by its index in there, 0 to C_i - 1
    cost        (C,) X   what each choice costs
    tail, head  (E,)     the two nodes of an edge, tail < head
    table_at    (E+1,)   the cells of an edge, in `table`
    table       (T,) X   of edge e a table (C_tail, C_head), row-major
    link_at     (N+1,)   the edges of node i, in `links`
    links       (2E,)    edges, by ascending neighbour
    tail_at     (E+1,)   the messages of an edge to its tail's choices, in `TrwsMessages.to_tail`
    head_at     (E+1,)   the messages of an edge to its head's choices, in `TrwsMessages.to_head`
    span_at     (N+1,)   the spans of node i: span_at[i] <= s < span_at[i + 1]
    span_first  (S,)     the first memory row of a span
    span_last   (S,)     the row after its last one
    span_start  (S,)     where its C_i amounts begin, in `amount`
    amount      (A,) X   bytes that a choice holds in every row of a span, above the least of the span
    room        (R,) X   bytes that a row leaves
    joins                tables over more than two nodes (`packed_joins`)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.ilp.problem import FORBIDDEN, Problem
from strategy.ilp.solve.core import Core, FloatArray, IntArray
from strategy.ilp.solve.joins import Join, without_joined
from strategy.ilp.solve.packed_joins import PackedJoins, pack_joins

# A forbidden cell among floats: no sum of legal costs reaches it, and no sum of such cells overflows.
FORBIDDEN_FLOAT = 1e200
# Whatever is at least this holds a forbidden cell.
LEAST_FORBIDDEN = 1e199


class PackedArrays(NamedTuple):
    """The arrays, with shapes as above."""

    choice_at: IntArray
    cost: npt.NDArray[Any]
    tail: IntArray
    head: IntArray
    table_at: IntArray
    table: npt.NDArray[Any]
    link_at: IntArray
    links: IntArray
    tail_at: IntArray
    head_at: IntArray
    span_at: IntArray
    span_first: IntArray
    span_last: IntArray
    span_start: IntArray
    amount: npt.NDArray[Any]
    room: npt.NDArray[Any]
    joins: PackedJoins


def pack(core: Core, rank: IntArray, joins: tuple[Join, ...] = ()) -> tuple[PackedArrays, tuple[int, ...]]:
    """The arrays of a core in exact integers, and the core's id of each node: by ascending `rank[id]`.

    Nodes that are joined away are not among them.
    """
    core = without_joined(core, joins) if joins else core
    nodes = tuple(sorted(core.costs, key=rank.tolist().__getitem__))
    position = {node: i for i, node in enumerate(nodes)}
    sizes = np.array([core.costs[node].size for node in nodes], np.int64)
    tails: list[int] = []
    heads: list[int] = []
    tables: list[IntArray] = []
    links: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for j, other in sorted((position[other], other) for other in core.tables[node]):
            if i < j:
                links[i].append(len(tails))
                links[j].append(len(tails))
                tails.append(i)
                heads.append(j)
                tables.append(core.tables[node][other])
    tail, head = np.array(tails, np.int64), np.array(heads, np.int64)
    spans = [(rows, amounts) for node in nodes for rows, amounts in sorted(core.spans[node].items(), key=_rows)]
    arrays = PackedArrays(
        choice_at=_offsets(sizes),
        cost=_joined([core.costs[node] for node in nodes]),
        tail=tail,
        head=head,
        table_at=_offsets(sizes[tail] * sizes[head]),
        table=_joined(tables),
        link_at=_offsets([len(row) for row in links]),
        links=np.array([edge for row in links for edge in row], np.int64),
        tail_at=_offsets(sizes[tail]),
        head_at=_offsets(sizes[head]),
        span_at=_offsets([len(core.spans[node]) for node in nodes]),
        span_first=np.array([rows[0] for rows, _ in spans], np.int64),
        span_last=np.array([rows[1] for rows, _ in spans], np.int64),
        span_start=_offsets([amounts.size for _, amounts in spans])[:-1],
        amount=_joined([amounts for _, amounts in spans]),
        room=core.room.copy(),
        joins=pack_joins(joins, nodes),
    )
    return arrays, nodes


def lifetime_rank(problem: Problem) -> IntArray:
    """The position of every node in the order of beginnings, then of ends; what holds nothing goes with its tails."""
    count = len(problem.nodes)
    begins, ends = [-1] * count, [-1] * count
    for i, node in enumerate(problem.nodes):
        if node.usages:
            begins[i] = min(usage.begin for usage in node.usages)
            ends[i] = max(usage.end for usage in node.usages)
    for edge in problem.edges:
        if not problem.nodes[edge.head].usages:
            begins[edge.head] = max(begins[edge.head], begins[edge.tail])
    rank = np.empty(count, np.int64)
    rank[np.lexsort((ends, begins))] = np.arange(count)
    return rank


def as_floats(arrays: PackedArrays) -> PackedArrays:
    """The working copy in float64: forbidden entries are `FORBIDDEN_FLOAT`."""
    return arrays._replace(
        cost=_forbidden_as_float(arrays.cost),
        table=_forbidden_as_float(arrays.table),
        joins=arrays.joins._replace(table=_forbidden_as_float(arrays.joins.table)),
        amount=arrays.amount.astype(np.float64),
        room=arrays.room.astype(np.float64),
    )


def _forbidden_as_float(entries: IntArray) -> FloatArray:
    return np.where(entries >= FORBIDDEN, FORBIDDEN_FLOAT, entries.astype(np.float64))


def _rows(span: tuple[tuple[int, int], IntArray]) -> tuple[int, int]:
    return span[0]


def _offsets(sizes: npt.ArrayLike) -> IntArray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate([part.ravel() for part in parts]) if parts else np.zeros(0, np.int64)
