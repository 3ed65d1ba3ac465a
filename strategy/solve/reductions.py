"""Exact reductions: each makes a core smaller and leaves the cost of its optimum as it was.

Every function returns whether it changed something, and records in the core's trail how to lift a choice back.
`reduce_core` applies them until nothing changes. Sources: dead-end elimination (Goldstein 1994, Biophys. J. 66),
degree-1 and degree-2 reductions of the partitioned boolean quadratic problem (Scholz and Eckstein 2002, LCTES).
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from strategy.problem import FORBIDDEN
from strategy.solve.core import Core, IntArray, NoChoiceError, OutOfTimeError, add, drop_slack_rows, normalise

# Cells of the work array of a dominance test, and of a table that an elimination may create.
DOMINANCE_CELLS = 1 << 18
TABLE_CELLS = 1 << 14
# From this size of the work array on, finding the distinct columns first is cheaper than comparing all.
UNIQUE_CELLS = 1 << 14


def reduce_core(core: Core, *, deadline_s: float = math.inf) -> None:
    """Applies all reductions to a fixed point, or until `deadline_s` (time.perf_counter); every stop is sound.

    Raises:
        NoChoiceError: some node has no legal choice left.
    """
    core.deadline_s = deadline_s
    dirty = set(core.costs)
    try:
        while dirty:
            dirty = _reduce_once(core, dirty)
    except OutOfTimeError:
        return


def _reduce_once(core: Core, dirty: set[int]) -> set[int]:
    """One pass; returns the nodes that it changed and their neighbours, which the next one looks at again."""
    before = {node: (cost.size, len(core.tables[node])) for node, cost in core.costs.items()}
    drop_forbidden(core)
    drop_oversized(core)
    drop_slack_rows(core)
    merge_functional(core)
    eliminate_leaves(core)
    normalise(core, sorted(dirty & core.costs.keys()))
    drop_dominated(core, dirty)
    eliminate_links(core)
    after = {node: (cost.size, len(core.tables[node])) for node, cost in core.costs.items()}
    if before == after:
        return set()
    changed = {node for node, size in after.items() if before[node] != size}
    return changed | {other for node in changed for other in core.tables[node]}


def drop_forbidden(core: Core) -> bool:
    """Arc consistency: drops choices that have no legal partner across some edge."""
    waiting = dict.fromkeys(core.costs)
    changed = False
    while waiting:
        core.check_time()
        node = next(iter(waiting))
        del waiting[node]
        legal = core.costs[node] < FORBIDDEN
        for table in core.tables[node].values():
            legal &= table.min(axis=1) < FORBIDDEN
        if not legal.all():
            core.keep(node, np.flatnonzero(legal))
            waiting.update(dict.fromkeys(core.tables[node]))
            changed = True
    return changed


def drop_oversized(core: Core) -> bool:
    """Drops choices that by themselves exceed what a memory row has room for."""
    changed = False
    for node in list(core.costs):
        core.check_time()
        fits = np.ones(core.costs[node].size, np.bool_)
        for amounts in _joint_amounts(core, node):
            fits &= amounts[1] <= core.room[amounts[0]]
        if not fits.all():
            core.keep(node, np.flatnonzero(fits))
            changed = True
    return changed


def drop_dominated(core: Core, nodes: set[int] | None = None) -> bool:
    """Drops choices that another choice of the node beats whatever the neighbours do, with no more memory.

    Choice b beats a when cost_b - cost_a + the sum over edges of max_h (table[b, h] - table[a, h]) <= 0, h over the
    neighbour's choices that are legal beside a. Of choices that beat each other, the first stays.
    """
    changed = False
    for node in sorted(core.costs if nodes is None else nodes & core.costs.keys()):
        core.check_time()
        size = core.costs[node].size
        if size == 1:
            continue
        regret = core.costs[node][:, None] - core.costs[node][None, :]
        for amounts in core.spans[node].values():
            regret = np.where(amounts[:, None] > amounts[None, :], FORBIDDEN, regret)
        for table in core.tables[node].values():
            lines = np.unique(table, axis=1) if size * table.size > UNIQUE_CELLS else table
            if size * size * lines.shape[1] > DOMINANCE_CELLS:
                break
            worse = lines[:, None, :] - lines[None, :, :]
            worse[np.broadcast_to(lines[None, :, :] >= FORBIDDEN, worse.shape)] = -FORBIDDEN
            regret = np.clip(regret + worse.max(axis=2), -FORBIDDEN, FORBIDDEN)
        else:
            beats = regret <= 0
            order = np.arange(size)
            beaten = (beats & (~beats.T | (order[:, None] < order[None, :]))).any(axis=0)
            if beaten.any():
                core.keep(node, np.flatnonzero(~beaten))
                changed = True
    return changed


def merge_functional(core: Core) -> bool:
    """Merges a node into a neighbour whose choice determines it: one legal cell in each row of their table."""
    changed = False
    for node in list(core.costs):
        core.check_time()
        for other, table in core.tables[node].items():
            legal = table < FORBIDDEN
            if len(core.tables[node]) > len(core.tables[other]) and (legal.sum(axis=1) == 1).all():
                continue  # a bijection: the node with fewer tables moves
            if (legal.sum(axis=0) == 1).all():
                _absorb(core, node, other, legal.argmax(axis=0))
                changed = True
                break
    return changed


def eliminate_leaves(core: Core) -> bool:
    """Eliminates nodes without memory and with at most one neighbour; folds nodes with a single choice."""
    waiting = dict.fromkeys(core.costs)
    changed = False
    while waiting:
        core.check_time()
        node = next(iter(waiting))
        del waiting[node]
        neighbours = list(core.tables[node])
        if core.costs[node].size == 1:
            _fold_single(core, node)
        elif len(neighbours) <= 1 and not core.spans[node]:
            joint = core.costs[node]
            for other in neighbours:
                joint = add(core.tables[other][node], core.costs[node])
                core.costs[other] = add(core.costs[other], joint.min(axis=1))
            if not neighbours:
                core.constant += _legal(int(joint.min()))
            core.drop_node(node, tuple(neighbours), joint.argmin(axis=-1))
        else:
            continue
        waiting.update(dict.fromkeys(neighbours))
        changed = True
    return changed


def eliminate_links(core: Core) -> bool:
    """Eliminates nodes without memory between two neighbours, by the min-plus product of the two tables."""
    changed = False
    for node in list(core.costs):
        core.check_time()
        if core.spans[node] or len(core.tables[node]) != 2:
            continue
        one, other = core.tables[node]
        sizes = core.costs[one].size, core.costs[other].size
        if sizes[0] * sizes[1] > TABLE_CELLS:
            continue
        left = add(core.tables[one][node], core.costs[node])
        joint = add(left[:, None, :], core.tables[other][node][None, :, :])
        core.add_table(one, other, joint.min(axis=2))
        core.drop_node(node, (one, other), joint.argmin(axis=2))
        changed = True
    return changed


def _fold_single(core: Core, node: int) -> None:
    """Moves the only choice of a node into its neighbours; its memory is already out of the rows' room."""
    core.constant += _legal(int(core.costs[node][0]))
    for other, table in core.tables[node].items():
        core.costs[other] = add(core.costs[other], table[0])
    core.drop_node(node, (), np.array(0))


def _absorb(core: Core, node: int, other: int, picks: IntArray) -> None:
    """Writes everything of `node` onto `other`, whose choice d implies that `node` takes `picks[d]`."""
    own = core.tables[node][other][picks, np.arange(picks.size)]
    core.costs[other] = add(core.costs[other], add(own, core.costs[node][picks]))
    for third, table in list(core.tables[node].items()):
        if third != other:
            core.add_table(other, third, table[picks])
    for (first, last), amounts in core.spans[node].items():
        core.hold(other, first, last, amounts[picks])
    core.drop_node(node, (other,), picks)


def _joint_amounts(core: Core, node: int) -> list[tuple[int, IntArray]]:
    """(tightest row, amounts of the node there) for each stretch of rows over which its amounts are constant."""
    bounds = sorted({bound for rows in core.spans[node] for bound in rows})
    joint = []
    for first, last in itertools.pairwise(bounds):
        held = [amounts for rows, amounts in core.spans[node].items() if rows[0] <= first and last <= rows[1]]
        if held:
            tightest = first + int(np.argmin(core.room[first:last]))
            joint.append((tightest, np.sum(held, axis=0)))
    return joint


def _legal(cost: int) -> int:
    """The cost itself, unless it is forbidden: then no choice is left."""
    if cost >= FORBIDDEN:
        raise NoChoiceError
    return cost
