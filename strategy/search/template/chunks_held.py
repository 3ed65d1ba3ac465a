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

from strategy.bounds.chunk_states import enough, states
from strategy.layout.schedule import Schedule

IntArray = npt.NDArray[np.int64]


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
    few = enough(schedule, stages, num_micro_batches)
    moments = [(one.saved, one.waiting, one.deferred, one.sums) for one in states(schedule, stages, stage, few, laps)]
    between = np.array([*moments, [(0,) * laps] * 3 + [(1,) * laps]], np.int64)
    rows = np.maximum(between[:-1], between[1:])  # while a chunk runs, what it reads and what it writes is there
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
