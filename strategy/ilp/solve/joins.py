"""Joins: nodes eliminated into one table over their three or four neighbours, which tightens the relaxation.

Messages over pairs do not see how the neighbours of such a node hang together; a table over all of them does, which
makes the bound higher (Sontag, Meltzer, Globerson, Jaakkola and Weiss 2008, UAI). Nodes with the same neighbours share
a table. Choices that it cannot tell apart are one class: an axis has a line per class, not per choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from strategy.ilp.problem import FORBIDDEN
from strategy.ilp.solve.core import Core, IntArray, add

# Neighbours of a node that is joined away.
FEWEST, MOST = 3, 4
# By width: cells of a join, at most, and in relation to the tables that it stands for.
WIDTHS = ((1 << 14, 4), (1 << 19, 64))


@dataclass(frozen=True, slots=True)
class Join:
    """One table: its axes are the classes of the nodes of `scope`, `classes[k][c]` that of choice c of `scope[k]`."""

    scope: tuple[int, ...]
    nodes: tuple[int, ...]
    classes: tuple[IntArray, ...]
    table: IntArray


def find_joins(core: Core, width: int = 0) -> tuple[Join, ...]:
    """Joins of nodes without memory, by ascending scope; no joined node is in a scope. Equal joins share arrays.

    The greater the `width`, which is an index of `WIDTHS`, the larger joins may be.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    taken: set[int] = set()
    for node in sorted(core.costs, key=lambda node: (core.costs[node].size, node)):
        scope = core.tables[node].keys()
        if FEWEST <= len(scope) <= MOST and not core.spans[node] and taken.isdisjoint(scope):
            groups.setdefault(tuple(sorted(scope)), []).append(node)
            taken.add(node)
    known: dict[tuple[bytes | int, ...], tuple[tuple[IntArray, ...], IntArray] | None] = {}
    joins = []
    for scope_of, nodes in sorted(groups.items()):
        nodes.sort()
        lines = [np.hstack([core.tables[other][node] for node in nodes]) for other in scope_of]
        key = (
            *(core.costs[node].tobytes() for node in nodes),
            *(part for rows in lines for part in (len(rows), rows.tobytes())),
        )
        if key not in known:
            known[key] = _joined([core.costs[node] for node in nodes], lines, *WIDTHS[width])
        found = known[key]
        if found is not None:
            joins.append(Join(scope_of, tuple(nodes), *found))
    return tuple(joins)


def without_joined(core: Core, joins: tuple[Join, ...]) -> Core:
    """The rest of a core: the nodes that are not joined away."""
    gone = {node for join in joins for node in join.nodes}
    tables = {
        node: {other: table for other, table in row.items() if other not in gone}
        for node, row in core.tables.items()
        if node not in gone
    }
    costs = {node: cost for node, cost in core.costs.items() if node not in gone}
    return Core(costs, tables, {node: core.spans[node] for node in costs}, core.room, core.constant)


def _joined(
    costs: list[IntArray], lines: list[IntArray], most: int, growth: int
) -> tuple[tuple[IntArray, ...], IntArray] | None:
    """The classes and the table of nodes with these costs, unless it would be too large.

    Args:
        costs: of the nodes.
        lines: of every member of the scope: its tables to the nodes, side by side.
        most: cells of the table.
        growth: cells of the table for every cell of `lines`.
    """
    distinct = [_classes(rows) for rows in lines]
    shape = [first.size for first, _ in distinct]
    if prod(shape) > min(most, growth * sum(rows.size for rows in lines)):
        return None
    table: IntArray = np.zeros(shape, np.int64)
    begin = 0
    for cost in costs:
        least: IntArray = np.full(shape, FORBIDDEN)
        for choice, price in enumerate(cost.tolist()):
            joint: IntArray = np.full(shape, price)
            for axis, (rows, (first, _)) in enumerate(zip(lines, distinct, strict=True)):
                along = [size if k == axis else 1 for k, size in enumerate(shape)]
                joint += rows[first, begin + choice].reshape(along)
            np.minimum(least, joint, out=least)
        table = add(table, least)
        begin += cost.size
    return tuple(of for _, of in distinct), table


def _classes(rows: IntArray) -> tuple[IntArray, IntArray]:
    """The first row of every class of equal rows, and the class of every row."""
    known: dict[bytes, int] = {}
    first: list[int] = []
    of: list[int] = []
    for k, row in enumerate(rows):
        content = row.tobytes()
        if content not in known:
            known[content] = len(first)
            first.append(k)
        of.append(known[content])
    return np.array(first, np.int64), np.array(of, np.int64)
