"""Exact reductions: each makes a core smaller and leaves the cost of its optimum as it was.

Each looks at the nodes that it is given (all of them, if none are named), and records in the core how to lift a choice
back and why the step is sound. `reduce_core` applies them until nothing changes. Sources: dead-end elimination
(Goldstein 1994, Biophys. J. 66), degree-1 and degree-2 reductions of the partitioned boolean quadratic problem (Scholz
and Eckstein 2002, LCTES).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from strategy.base.errors import OutOfTimeError
from strategy.ilp.certificate.proof import IMPOSSIBLE, Eliminate, Merge
from strategy.ilp.problem import FORBIDDEN
from strategy.ilp.solve.core import Core, IntArray, NoChoiceError, add, subtract
from strategy.ilp.solve.memory_rows import drop_oversized, drop_slack_rows

# Cells of the work array of a dominance test, and of a table that an elimination may create.
DOMINANCE_CELLS = 1 << 20
TABLE_CELLS = 1 << 14
# Cells of tables that are looked at all at once.
SMALL_CELLS = 1 << 20

# From this size of the work array on, finding the distinct columns first is cheaper than comparing all.
UNIQUE_CELLS = 1 << 16

# The share of the nodes that rows must have changed for another round.
WORTHWHILE = 0.02


def reduce_core(core: Core) -> None:
    """Applies all reductions until little changes, or until the core's time is up; every stop is sound.

    Raises:
        NoChoiceError: some node has no legal choice left.
    """
    core.changed = set(core.costs)
    try:
        _drop_by_memory(core)
        while len(core.changed) > WORTHWHILE * len(core.costs):
            while core.changed:
                _reduce_once(core)
            _drop_by_memory(core)
    except OutOfTimeError:
        return


def _drop_by_memory(core: Core) -> None:
    drop_oversized(core)
    drop_slack_rows(core)


def _reduce_once(core: Core) -> None:
    """One pass over the nodes that changed; what it changes is left for the next one."""
    nodes, core.changed = core.changed & core.costs.keys(), set()
    drop_forbidden(core, nodes)
    merge_functional(core, nodes | core.changed)
    eliminate_leaves(core, nodes | core.changed)
    normalise(core, nodes | core.changed)
    drop_dominated(core, nodes | core.changed)
    eliminate_links(core, nodes | core.changed)


def _ordered(core: Core, nodes: Iterable[int] | None) -> list[int]:
    """The live ones among `nodes`, ascending."""
    return sorted(core.costs if nodes is None else core.costs.keys() & nodes)


def normalise(core: Core, nodes: Iterable[int] | None = None) -> None:
    """Makes the minima of every line of the nodes' tables zero.

    Raises:
        NoChoiceError: a node's choices are all forbidden.
    """
    pairs = {(min(one, other), max(one, other)) for one in _ordered(core, nodes) for other in core.tables[one]}
    core.normalise(sorted(pairs))


def drop_forbidden(core: Core, nodes: Iterable[int] | None = None) -> None:
    """Arc consistency: drops choices that have no legal partner across some edge."""
    waiting = dict.fromkeys(reversed(_ordered(core, nodes)))
    untouched = _with_partners(core, list(waiting))
    while waiting:
        core.check_time()
        node, _ = waiting.popitem()
        legal = core.costs[node] < FORBIDDEN
        if node in untouched:
            legal &= untouched.pop(node)
        else:
            for table in core.tables[node].values():
                legal &= table.min(axis=1) < FORBIDDEN
        if not legal.all():
            dropped = np.flatnonzero(~legal)
            core.drop_choices(node, dropped, np.full(dropped.size, IMPOSSIBLE))
            waiting.update(dict.fromkeys(core.tables[node]))
            for other in core.tables[node]:
                untouched.pop(other, None)


def _with_partners(core: Core, nodes: list[int]) -> dict[int, npt.NDArray[np.bool_]]:
    """Node -> which of its choices have a legal partner across every edge; nothing where tables are large.

    Small tables are many, and it takes longer to call for each than to look at it.
    """
    tables = [table for node in nodes for table in core.tables[node].values()]
    if not 0 < sum(table.size for table in tables) <= SMALL_CELLS:
        return {}
    widths = np.repeat([table.shape[1] for table in tables], [table.shape[0] for table in tables])
    entries = np.concatenate([table.ravel() for table in tables])
    legal = np.minimum.reduceat(entries, np.cumsum(widths) - widths) < FORBIDDEN
    found: dict[int, npt.NDArray[np.bool_]] = {}
    begin = 0
    for node in nodes:
        end = begin + len(core.tables[node]) * core.costs[node].size
        lines = legal[begin:end].reshape(-1, core.costs[node].size)
        found[node] = np.logical_and.reduce(lines, axis=0)
        begin = end
    return found


def drop_dominated(core: Core, nodes: Iterable[int] | None = None) -> None:
    """Drops choices that another choice of the node beats whatever the neighbours do, with no more memory.

    Choice b beats a when cost_b - cost_a + the sum over edges of max_h (table[b, h] - table[a, h]) <= 0, h over the
    neighbour's choices that are legal beside a. Of choices that beat each other, the first stays.
    """
    for node in _ordered(core, nodes):
        core.check_time()
        cost = core.costs[node]
        if cost.size == 1:
            continue
        cheaper = cost[:, None] <= cost[None, :]
        for amounts in core.spans[node].values():
            cheaper &= amounts[:, None] <= amounts[None, :]
        np.fill_diagonal(cheaper, val=False)
        winners, losers = _unbeaten(cost, list(core.tables[node].values()), *np.nonzero(cheaper))
        if winners.size:
            beats = np.zeros_like(cheaper)
            beats[winners, losers] = True
            _drop_beaten(core, node, beats)


def _unbeaten(cost: IntArray, tables: list[IntArray], ones: IntArray, others: IntArray) -> tuple[IntArray, IntArray]:
    """Of the pairs of choices (ones[k], others[k]), those in which the first beats the second in cost.

    Tables have minima of zero in every line, hence each can only add to the regret; pairs that already regret are out.
    """
    regret = cost[ones] - cost[others]
    for table in sorted(tables, key=np.size):
        if ones.size == 0:
            break
        lines = np.unique(table, axis=1) if ones.size * table.shape[1] > UNIQUE_CELLS else table
        if ones.size * lines.shape[1] > DOMINANCE_CELLS:
            return ones[:0], others[:0]
        beside = lines[others]
        worse = np.where(beside >= FORBIDDEN, -FORBIDDEN, lines[ones] - beside).max(axis=1)
        regret = np.maximum(regret + worse, -FORBIDDEN)
        left = regret <= 0
        if not left.all():
            ones, others, regret = ones[left], others[left], regret[left]
    return ones, others


def _drop_beaten(core: Core, node: int, beats: npt.NDArray[np.bool_]) -> None:
    """Drops what something that stays beats, by `beats[b, a]`."""
    order = np.arange(len(beats))
    winners: npt.NDArray[np.bool_] = beats & (~beats.T | (order[:, None] < order[None, :]))
    winners &= ~np.asarray(winners.any(axis=0))[:, None]
    dropped = np.flatnonzero(winners.any(axis=0))
    if dropped.size:
        core.drop_choices(node, dropped, winners[:, dropped].argmax(axis=0))


def merge_functional(core: Core, nodes: Iterable[int] | None = None) -> None:
    """Merges a node into a neighbour whose choice determines it: one legal cell in each column of their table."""
    for node in _ordered(core, nodes):
        core.check_time()
        for other, table in core.tables[node].items():
            if table.size and table[0, 0] < FORBIDDEN and table[-1, 0] < FORBIDDEN and len(table) > 1:
                continue  # two legal cells in a column
            legal = table < FORBIDDEN
            if np.count_nonzero(legal) != table.shape[1] or not legal.any(axis=0).all():
                continue
            if (
                len(core.tables[node]) > len(core.tables[other])
                and legal.any(axis=1).all()
                and len(legal) == len(legal.T)
            ):
                continue  # a bijection: the node with fewer tables moves
            _absorb(core, node, other, legal.argmax(axis=0))
            break


def eliminate_leaves(core: Core, nodes: Iterable[int] | None = None) -> None:
    """Eliminates nodes without memory and with at most one neighbour; folds nodes with a single choice."""
    waiting = dict.fromkeys(reversed(_ordered(core, nodes)))
    while waiting:
        core.check_time()
        node, _ = waiting.popitem()
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
            core.drop_node(node, tuple(neighbours), joint.argmin(axis=-1), Eliminate(node))
        else:
            continue
        waiting.update(dict.fromkeys(neighbours))


def eliminate_links(core: Core, nodes: Iterable[int] | None = None) -> None:
    """Eliminates nodes without memory between two neighbours, by the min-plus product of the two tables."""
    for node in _ordered(core, nodes):
        core.check_time()
        if core.costs[node].size == 1 or core.spans[node] or len(core.tables[node]) != 2:
            continue
        one, other = core.tables[node]
        sizes = core.costs[one].size, core.costs[other].size
        if sizes[0] * sizes[1] > TABLE_CELLS:
            continue
        least = _legal(int(core.costs[node].min()))
        core.constant += least
        left = add(core.tables[one][node], subtract(core.costs[node], np.int64(least)))
        joint = add(left[:, None, :], core.tables[other][node][None, :, :])
        core.add_table(one, other, joint.min(axis=2))
        core.drop_node(node, (one, other), joint.argmin(axis=2), Eliminate(node))


def fold_single_choices(core: Core) -> None:
    """Moves the choice of every node that has one alone into its neighbours."""
    for node in [node for node, cost in core.costs.items() if cost.size == 1]:
        _fold_single(core, node)


def _fold_single(core: Core, node: int) -> None:
    """Moves the only choice of a node into its neighbours; its memory is already out of the rows' room."""
    core.constant += _legal(int(core.costs[node][0]))
    for other, table in core.tables[node].items():
        core.costs[other] = add(core.costs[other], table[0])
    core.drop_node(node, (), np.array(0), Eliminate(node))


def _absorb(core: Core, node: int, other: int, picks: IntArray) -> None:
    """Writes everything of `node` onto `other`, whose choice d implies that `node` takes `picks[d]`."""
    own = core.tables[node][other][picks, np.arange(picks.size)]
    core.costs[other] = add(core.costs[other], add(own, core.costs[node][picks]))
    for third, table in core.tables[node].items():
        if third != other:
            core.add_table(other, third, table.take(picks, axis=0))
    for (first, last), amounts in core.spans[node].items():
        core.add_span(other, first, last, amounts[picks])
    core.drop_node(node, (other,), picks, Merge(node, other))


def _legal(cost: int) -> int:
    """The cost itself, unless it is forbidden: then no choice is left."""
    if cost >= FORBIDDEN:
        raise NoChoiceError
    return cost
