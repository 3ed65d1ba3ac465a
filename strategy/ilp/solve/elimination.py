"""Bucket elimination: the optimum without memory, exactly, where the graph is narrow enough.

Eliminating a node joins all tables that mention it and minimises over its choices (Dechter 1999, Artificial
Intelligence 113). The order is greedy by the size of the joined table. The work is planned once: buckets can be
eliminated again with other node costs, which is what multipliers of memory rows change.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from strategy.ilp.problem import FORBIDDEN
from strategy.ilp.solve.core import Core, IntArray, add

MOST_AXES = 64
"""Of an array of NumPy's."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One elimination: the joined table has `scope` (the neighbours, then the node itself) as its axes."""

    node: int
    scope: tuple[int, ...]
    table: IntArray
    parent: int  # position of the bucket that takes the message, -1 where it is a number
    align: tuple[int | slice | None, ...]  # puts the message's axes where the parent's scope has them


@dataclass(frozen=True, slots=True)
class EliminationResult:
    """The least cost, the choice that has it, and each bucket's joined table and message, int64 with axes by scope."""

    cost: int
    picks: Mapping[int, int]
    joined: tuple[IntArray, ...]
    messages: tuple[IntArray, ...]


def plan_elimination(core: Core, *, max_cells: int) -> tuple[Bucket, ...] | None:
    """Buckets in order of elimination.

    None where the joined tables would exceed `max_cells` in all, or one of them would have more axes than NumPy has.
    """
    order = _order(core, max_cells)
    if order is None:
        return None
    position = {node: k for k, (node, _) in enumerate(order)}
    buckets = []
    for node, neighbours in order:
        scope = (*sorted(neighbours, key=position.__getitem__, reverse=True), node)
        table: IntArray = np.zeros([core.costs[other].size for other in scope], np.int64)
        for axis, other in enumerate(scope[:-1]):
            if other in core.tables[node]:
                shape = [1] * len(scope)
                shape[axis], shape[-1] = table.shape[axis], table.shape[-1]
                table = add(table, core.tables[other][node].reshape(shape))
        buckets.append((node, scope, table))
    planned = []
    for node, scope, table in buckets:
        parent = position[scope[-2]] if len(scope) > 1 else -1
        align = tuple(slice(None) if other in scope else None for other in buckets[parent][1]) if parent >= 0 else ()
        planned.append(Bucket(node, scope, table, parent, align))
    return tuple(planned)


def eliminate(buckets: tuple[Bucket, ...], costs: dict[int, IntArray], bits: int = 0) -> EliminationResult:
    """Minimises the tables plus `costs` (>= 0, by node); a cost of `FORBIDDEN` means that nothing is legal.

    Costs, like the answer, are in units of 2^-`bits`, tables are not.
    """
    joined = [
        add(np.where(bucket.table >= FORBIDDEN, FORBIDDEN, bucket.table << bits), costs[bucket.node])
        for bucket in buckets
    ]
    messages: list[IntArray] = []
    total = 0
    for k, bucket in enumerate(buckets):
        message = joined[k].min(axis=-1)
        messages.append(message)
        if bucket.parent < 0:
            total += int(message)
        else:
            above = joined[bucket.parent]
            np.minimum(np.add(above, message[bucket.align], out=above), FORBIDDEN, out=above)
    picks: dict[int, int] = {}
    for bucket, table in zip(reversed(buckets), reversed(joined), strict=True):
        line = table[tuple(picks[other] for other in bucket.scope[:-1])]
        picks[bucket.node] = int(line.argmin())
    return EliminationResult(min(total, FORBIDDEN), picks, tuple(joined), tuple(messages))


def min_marginals(buckets: tuple[Bucket, ...], result: EliminationResult) -> dict[int, IntArray]:
    """Min-marginals: for each node (C_i,), the least total cost of a choice in which it takes each of its options."""
    whole: list[IntArray] = list(result.joined)
    marginals: dict[int, IntArray] = {}
    for k in range(len(buckets) - 1, -1, -1):
        bucket, message = buckets[k], result.messages[k]
        if bucket.parent < 0:
            outside: IntArray = np.asarray(result.cost - message)
        else:
            above = whole[bucket.parent]
            axes = tuple(axis for axis, item in enumerate(bucket.align) if item is None)
            outside = np.where(message >= FORBIDDEN, FORBIDDEN, above.min(axis=axes) - message)
        whole[k] = add(result.joined[k], outside[..., None])
        marginals[bucket.node] = whole[k].min(axis=tuple(range(len(bucket.scope) - 1)))
    return marginals


def _order(core: Core, max_cells: int) -> list[tuple[int, frozenset[int]]] | None:
    """(node, its neighbours then), always taking the smallest joined table; ties go to the smaller id."""
    links = {node: set(tables) for node, tables in core.tables.items()}

    def cells(node: int) -> int:
        return prod(core.costs[other].size for other in links[node]) * core.costs[node].size

    size = {node: cells(node) for node in links}
    heap = [(size[node], node) for node in links]
    heapq.heapify(heap)
    order: list[tuple[int, frozenset[int]]] = []
    while links:
        joined, node = heapq.heappop(heap)
        if node not in links or joined != size[node]:
            continue
        max_cells -= joined
        if max_cells < 0:
            return None
        neighbours = links.pop(node)
        if len(neighbours) >= MOST_AXES:  # of few cells all the same, where most of them have a single choice
            return None
        order.append((node, frozenset(neighbours)))
        for other in neighbours:
            links[other] |= neighbours
            links[other] -= {node, other}
        for other in neighbours:
            size[other] = cells(other)
            heapq.heappush(heap, (size[other], other))
    return order
