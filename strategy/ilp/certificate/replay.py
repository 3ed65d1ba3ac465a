"""Replays the steps of a proof on the checker's working problem, each only if it is what `proof` says it is."""

from __future__ import annotations

import numpy as np

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.bounds import by_choice
from strategy.ilp.certificate.proof import (
    IMPOSSIBLE,
    Drop,
    Eliminate,
    Fix,
    IntArray,
    KeepRows,
    Merge,
    Normalise,
    Step,
)
from strategy.ilp.certificate.working import Working, legal, minus, plus, stretches
from strategy.ilp.problem import FORBIDDEN

# Cells of a table that an elimination may create, and of the sums that are compared at a time.
TABLE_CELLS = 1 << 24
CHUNK_CELLS = 1 << 20


def replay(work: Working, step: Step) -> None:
    """Applies `step` to `work`.

    Raises:
        CertificateError: the step is not valid here.
    """
    match step:
        case Normalise():
            _normalise(work, step)
        case Drop():
            _drop(work, step)
        case Eliminate():
            _eliminate(work, step.node)
        case Merge():
            _merge(work, step.node, step.into)
        case KeepRows():
            if (np.diff(step.rows) <= 0).any() or not _within(step.rows, work.room.size):
                raise CertificateError("rows that are not ascending, or that are not there")
            work.keep_rows(step.rows)
        case Fix():
            _fix(work, step)


def check_node(work: Working, node: int) -> None:
    """Raises CertificateError unless the node is live."""
    if node not in work.costs:
        raise CertificateError("no such node is left", got=node)


def check_choices(work: Working, node: int, choices: IntArray) -> None:
    """Raises CertificateError unless `choices` are different choices of the node, ascending."""
    check_node(work, node)
    if (np.diff(choices) <= 0).any() or not _within(choices, work.costs[node].size):
        raise CertificateError(f"choices of node {node} that are not ascending, or that are not there")


def _within(indices: IntArray, size: int) -> bool:
    return indices.size == 0 or (int(indices.min()) >= 0 and int(indices.max()) < size)


def _normalise(work: Working, step: Normalise) -> None:
    if step.ones.size != step.others.size:
        raise CertificateError("lists of different length")
    for one, other in zip(step.ones.tolist(), step.others.tolist(), strict=True):
        table = work.tables.get(one, {}).get(other)
        if table is None:
            raise CertificateError("no table is there", got=(one, other))
        if table.size == 0:
            continue
        rows = _least(table.min(axis=1))
        table = minus(table, rows[:, None])
        columns = _least(table.min(axis=0))
        table = minus(table, columns[None, :])
        work.costs[one] = plus(work.costs[one], rows)
        work.costs[other] = plus(work.costs[other], columns)
        if table.any():
            work.put(one, other, table)
        else:
            del work.tables[one][other], work.tables[other][one]


def _least(minima: IntArray) -> IntArray:
    """Minima of lines; nothing where a line has no legal entry."""
    return np.where(legal(minima), minima, 0)


def _drop(work: Working, step: Drop) -> None:
    node, choices, by = step.node, step.choices, step.by
    check_choices(work, node, choices)
    if by.size != choices.size:
        raise CertificateError("lists of different length")
    beaten = by != IMPOSSIBLE
    _check_impossible(work, node, choices[~beaten])
    if beaten.any():
        if not _within(by[beaten], work.costs[node].size) or np.isin(by[beaten], choices).any():
            raise CertificateError(f"node {node}: what is dropped is said to be beaten by what is not there")
        _check_beaten(work, node, choices[beaten], by[beaten])
    work.keep(node, np.delete(np.arange(work.costs[node].size), choices))


def _check_impossible(work: Working, node: int, choices: IntArray) -> None:
    """Refuses unless each of the choices is forbidden, by itself or beside all of a neighbour's, or too large."""
    possible = legal(work.costs[node][choices])
    for table in work.tables[node].values():
        possible &= legal(table[choices]).any(axis=1)
    if possible.any():
        for room, held in stretches(work, node):
            possible &= held[choices] <= room
    if possible.any():
        raise CertificateError(f"choice {choices[possible.argmax()]} of node {node} is dropped, but it is possible")


def _check_beaten(work: Working, node: int, choices: IntArray, by: IntArray) -> None:
    """Refuses unless each of the choices costs and holds at least as much as what beats it, or cannot be taken."""
    cost = work.costs[node]
    possible = legal(cost[choices])
    refused = ~legal(cost[by])
    # Python integers: there may be many tables.
    regret = (cost[by] - cost[choices]).astype(object)
    for amounts in work.spans[node].values():
        refused |= amounts[by] > amounts[choices]
    for table in work.tables[node].values():
        mine, winner = table[choices], table[by]
        beside = legal(mine)
        possible &= beside.any(axis=1)
        refused |= (beside & ~legal(winner)).any(axis=1)
        regret = regret + np.where(beside, winner - mine, -FORBIDDEN).max(axis=1, initial=-FORBIDDEN)
    refused = (refused | np.asarray(regret > 0, np.bool_)) & possible
    if refused.any():
        k = int(refused.argmax())
        raise CertificateError(f"choice {choices[k]} of node {node} is dropped, but choice {by[k]} does not beat it")


def _eliminate(work: Working, node: int) -> None:
    check_node(work, node)
    cost, tables = work.costs[node], dict(work.tables[node])
    if cost.size == 0:
        raise CertificateError(f"node {node} is eliminated, but it has no choice")
    if cost.size == 1:
        for other, table in tables.items():
            work.costs[other] = plus(work.costs[other], table[0])
        _add_constant(work, cost)
    elif work.spans[node]:
        raise CertificateError(f"node {node} is eliminated, but it holds memory")
    elif len(tables) == 2:
        (one, left), (other, right) = tables.items()
        least = cost.min(keepdims=True)
        _add_constant(work, least)
        work.add_table(one, other, _through(left, minus(cost, least) if legal(least)[0] else cost, right))
    elif len(tables) == 1:
        ((other, table),) = tables.items()
        work.costs[other] = plus(work.costs[other], plus(table, cost[:, None]).min(axis=0))
    elif not tables:
        _add_constant(work, cost)
    else:
        raise CertificateError(f"node {node} is eliminated, but it has {len(tables)} neighbours")
    work.remove(node)


def _add_constant(work: Working, cost: IntArray) -> None:
    work.constant = int(plus(np.array([work.constant]), cost.min(keepdims=True))[0])


def _through(left: IntArray, cost: IntArray, right: IntArray) -> IntArray:
    """The least of left[c, a] + cost[c] + right[c, b] over c: (A, B)."""
    shape = left.shape[1], right.shape[1]
    cells = shape[0] * shape[1]
    if cells > TABLE_CELLS:
        raise CertificateError("an elimination makes too large a table", got=shape, expected=f"{TABLE_CELLS} cells")
    best = np.full(shape, FORBIDDEN)
    left = plus(left, cost[:, None])
    some = max(CHUNK_CELLS // max(cells, 1), 1)
    for first in range(0, cost.size, some):
        few = slice(first, first + some)
        np.minimum(best, plus(left[few, :, None], right[few, None, :]).min(axis=0), out=best)
    return best


def _merge(work: Working, node: int, into: int) -> None:
    check_node(work, node)
    table = work.tables[node].get(into)
    if table is None:
        raise CertificateError(f"node {node} is merged into node {into}, but nothing is between them")
    if table.shape[0] == 0:
        raise CertificateError(f"node {node} is merged, but it has no choice")
    allowed = legal(table)
    if (allowed.sum(axis=0) > 1).any():
        raise CertificateError(f"node {node} is merged into node {into}, whose choice does not determine it")
    picks = allowed.argmax(axis=0)
    own = plus(table[picks, np.arange(picks.size)], work.costs[node][picks])
    work.costs[into] = plus(work.costs[into], own)
    for third, further in list(work.tables[node].items()):
        if third != into:
            work.add_table(into, third, further[picks])
    for rows, amounts in work.spans[node].items():
        work.add_span(into, rows, amounts[picks])
    work.remove(node)


def _fix(work: Working, step: Fix) -> None:
    if step.nodes.size != len(step.choices):
        raise CertificateError("lists of different length")
    nodes = step.nodes.tolist()
    if len(set(nodes)) < len(nodes):
        raise CertificateError("a node is fixed twice")
    reached = by_choice(work, step.bound, step.below)
    for node, choices in zip(nodes, step.choices, strict=True):
        check_choices(work, node, choices)
        cheap = ~reached[node][choices]
        if cheap.any():
            choice = choices[cheap.argmax()]
            raise CertificateError(f"choice {choice} of node {node} is dropped, but it may cost less than {step.below}")
    for node, choices in zip(nodes, step.choices, strict=True):
        work.keep(node, np.delete(np.arange(work.costs[node].size), choices))
