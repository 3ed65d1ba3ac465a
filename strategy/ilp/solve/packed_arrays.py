"""A core as a few long arrays, which is the form that the hot loops read.

Nodes are numbered by when their memory is first held, so that an order over nodes follows the program and not the file.
Node i has the choices `first[i]:first[i + 1]` of `cost`. Edge e lies between `tail[e] < head[e]`; its
table is `table[at[e]:at[e + 1]]`, row-major. Its messages are `tail_at[e]:tail_at[e + 1]` to the tail's choices and
`head_at[e]:head_at[e + 1]` to the head's. A span s of node i (`span_at[i] <= s < span_at[i + 1]`) holds
`amount[span_start[s] + c]` in the rows `span_first[s]:span_last[s]`. `joins` are tables over more than two nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.ilp.problem import FORBIDDEN, Problem
from strategy.ilp.solve.core import Core, FloatArray, IntArray
from strategy.ilp.solve.joins import Join, without
from strategy.ilp.solve.packed_joins import FlatJoins, flatten_joins

# A forbidden cell among floats: no sum of legal costs reaches it, and no sum of such cells overflows.
BARRED = 1e200
# Whatever is at least this holds a forbidden cell.
LEGAL = 1e199


class Flat(NamedTuple):
    """The arrays; costs, tables and amounts are int64 (exact) or float64 (the working copy)."""

    first: IntArray
    cost: npt.NDArray[Any]
    tail: IntArray
    head: IntArray
    at: IntArray
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
    joins: FlatJoins


def flatten(core: Core, rank: IntArray, joins: tuple[Join, ...] = ()) -> tuple[Flat, tuple[int, ...]]:
    """The arrays of a core in exact integers, and the core's id of each node: by ascending `rank[id]`.

    What is joined away is not among the nodes.
    """
    core = without(core, joins) if joins else core
    nodes = tuple(sorted(core.costs, key=rank.tolist().__getitem__))
    place = {node: i for i, node in enumerate(nodes)}
    sizes = np.array([core.costs[node].size for node in nodes], np.int64)
    tails: list[int] = []
    heads: list[int] = []
    tables: list[IntArray] = []
    links: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for j, other in sorted((place[other], other) for other in core.tables[node]):
            if i < j:
                links[i].append(len(tails))
                links[j].append(len(tails))
                tails.append(i)
                heads.append(j)
                tables.append(core.tables[node][other])
    tail, head = np.array(tails, np.int64), np.array(heads, np.int64)
    spans = [(rows, amounts) for node in nodes for rows, amounts in sorted(core.spans[node].items(), key=_rows)]
    flat = Flat(
        first=_offsets(sizes),
        cost=_joined([core.costs[node] for node in nodes]),
        tail=tail,
        head=head,
        at=_offsets(sizes[tail] * sizes[head]),
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
        joins=flatten_joins(joins, nodes),
    )
    return flat, nodes


def lifetime_rank(problem: Problem) -> IntArray:
    """The place of every node in the order of beginnings, then of ends; what holds nothing goes with its tails."""
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


def in_floats(flat: Flat) -> Flat:
    """The working copy: forbidden entries are `BARRED`."""
    return flat._replace(
        cost=_barred(flat.cost),
        table=_barred(flat.table),
        joins=flat.joins._replace(table=_barred(flat.joins.table)),
        amount=flat.amount.astype(np.float64),
        room=flat.room.astype(np.float64),
    )


def _barred(entries: IntArray) -> FloatArray:
    return np.where(entries >= FORBIDDEN, BARRED, entries.astype(np.float64))


def _rows(span: tuple[tuple[int, int], IntArray]) -> tuple[int, int]:
    return span[0]


def _offsets(sizes: npt.ArrayLike) -> IntArray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate([part.ravel() for part in parts]) if parts else np.zeros(0, np.int64)
