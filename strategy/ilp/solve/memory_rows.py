"""Memory rows that cannot bind, and choices that no row has room for."""

from __future__ import annotations

import numpy as np

from strategy.ilp.certificate.proof import IMPOSSIBLE
from strategy.ilp.solve.core import Core, IntArray, NoChoiceError


def drop_slack_rows(core: Core) -> None:
    """Forgets the rows that can no longer bind, and rows that another one implies.

    Between rows r and s the load grows by at most the largest amounts of what begins in between, and shrinks by at
    most those of what ends: where that is no more than the rooms differ, the one row implies the other.

    Raises:
        NoChoiceError: even the least amounts exceed a row.
    """
    rows = len(core.room)
    if rows == 0:
        return
    if core.room.min() < 0:
        raise NoChoiceError
    begun, ended, most = _changes(core)
    kept = most > core.room
    # Implied by an earlier row: not a new height of what begins, less the room.
    height = begun - core.room
    kept[1:] &= height[1:] > np.maximum.accumulate(height)[:-1]
    # Of the rows that are left, implied by a later one.
    left = np.flatnonzero(kept)
    depth = (ended + core.room)[left]
    kept[left[:-1]] = depth[:-1] < np.minimum.accumulate(depth[::-1])[::-1][1:]
    core.keep_rows(kept)


def drop_oversized(core: Core) -> None:
    """Drops choices that by themselves exceed what a memory row has room for.

    Raises:
        NoChoiceError: even the least amounts exceed a row, or nothing is left of a node.
    """
    if len(core.room) == 0:
        return
    if core.room.min() < 0:
        raise NoChoiceError
    nodes, _, _, largest = _spans(core)
    most = np.bincount(nodes, largest) if nodes.size else np.zeros(0)
    for node in np.flatnonzero(most > core.room.min()).tolist():
        core.check_time()
        tightest, held = joint_amounts(core, node)
        dropped = np.flatnonzero((held > tightest[:, None]).any(axis=0))
        if dropped.size:
            core.drop_choices(node, dropped, np.full(dropped.size, IMPOSSIBLE))


def _changes(core: Core) -> tuple[IntArray, IntArray, IntArray]:
    """Per row: what has begun to be held up to it, what has ended, at most; and the most that it can hold.

    What one node gives up as it takes something else counts only by the difference.
    """
    rows = len(core.room)
    _, first, last, largest = _spans(core)
    begun, ended = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    np.add.at(begun, first, largest)
    np.add.at(ended, last, largest)
    most = (begun - ended).cumsum()
    for spans in core.spans.values():
        if len(spans) == 1:
            continue
        for row in {first for first, _ in spans} & {last for _, last in spans}:
            taken = [amounts for (first, _), amounts in spans.items() if first == row]
            given = [amounts for (_, last), amounts in spans.items() if last == row]
            change = np.sum(taken, axis=0) - np.sum(given, axis=0)
            begun[row] += change.max() - sum(amounts.max() for amounts in taken)
            ended[row] += (-change).max() - sum(amounts.max() for amounts in given)
    return begun.cumsum()[:-1], ended.cumsum()[:-1], most[:-1]


def joint_amounts(core: Core, node: int) -> tuple[IntArray, IntArray]:
    """Over every stretch of rows on which a node's amounts are constant: the least room, and what each choice holds.

    Shapes (stretches,) and (stretches, choices).
    """
    spans = core.spans[node]
    bounds = np.unique(list(spans))
    change = np.zeros((bounds.size, core.costs[node].size), np.int64)
    for (first, last), amounts in spans.items():
        change[np.searchsorted(bounds, first)] += amounts
        change[np.searchsorted(bounds, last)] -= amounts
    room = core.room[bounds[0] : bounds[-1]]
    return np.minimum.reduceat(room, bounds[:-1] - bounds[0]), change.cumsum(axis=0)[:-1]


def _spans(core: Core) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(node, first row, row after the last, largest amount) of every span."""
    owned = [(node, *rows) for node, spans in core.spans.items() for rows in spans]
    if not owned:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty, empty
    nodes, first, last = np.array(owned, np.int64).T
    amounts = [amounts for spans in core.spans.values() for amounts in spans.values()]
    starts = np.concatenate(([0], np.cumsum([held.size for held in amounts])[:-1]))
    return nodes, first, last, np.maximum.reduceat(np.concatenate(amounts), starts)
