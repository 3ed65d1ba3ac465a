"""Chunks held: what a stage holds of micro-batches, chunk after chunk, in the order of its schedule.

    chunks                                        F0  F1  F2  B0  F3  B1  ...
    saved for the backward pass                    1   2   3   3   3   3
    whether sums of gradients are there            0   0   0   1   1   1

Nothing else is estimated here: with these counts a stage's bytes follow from those of its layers (`stages`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order

IntArray = npt.NDArray[np.int64]
ROUNDS = 3
"""Micro-batches, per stage, after which nothing new happens."""


@lru_cache(maxsize=1 << 12)
def chunks_held(schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int) -> IntArray:
    """(N, 4, laps): what is held at once, at each of N times; none holds less than another of everything.

    Micro-batches that are saved for the backward pass; that are saved for gradients of weights, which are a pass of
    their own or part of the backward pass; that these wait for; and whether gradients are added up. Of what several
    micro-batches hold in turn, the most so far counts.
    """
    if schedule is Schedule.GPIPE:
        most = num_micro_batches if stages > 1 else 1
        last = max(most - 1, 1)
        return np.array([[[most], [most], [0], [0]], [[last], [last], [0], [1]]], np.int64)
    few = min(num_micro_batches, ROUNDS * stages + 2 if schedule is not Schedule.INTERLEAVED else ROUNDS * stages)
    now, found = np.zeros((4, laps), np.int64), []
    saved, waiting, deferred, sums = now
    for chunk in chunk_order(schedule, stages, stage, few, laps):
        lap, splits = chunk.lap, schedule.splits_backward
        if chunk.phase is Phase.FORWARD:
            saved[lap] += 1
            waiting[lap] += 1
        elif chunk.phase is Phase.BACKWARD:
            deferred[lap] += splits
        sums[lap] |= chunk.phase is (Phase.WEIGHT if splits else Phase.BACKWARD)
        found.append(now.copy())
        saved[lap] -= chunk.phase is Phase.BACKWARD
        if chunk.phase is (Phase.WEIGHT if splits else Phase.BACKWARD):
            waiting[lap] -= 1
            deferred[lap] -= splits
    rows = np.array(found)
    # A place that several micro-batches take in turn is not free for others in between.
    reused = rows.max(0) < num_micro_batches
    rows = np.where(reused, np.maximum.accumulate(rows, axis=0), rows)
    return _most(np.unique(rows, axis=0))


def _most(rows: IntArray) -> IntArray:
    """Those rows that none holds more than of everything."""
    flat = rows.reshape(len(rows), -1)
    kept: list[int] = []
    for i in np.argsort(-flat.sum(1), kind="stable"):
        if not (flat[kept] >= flat[i]).all(1).any():
            kept.append(int(i))
    return rows[kept]
