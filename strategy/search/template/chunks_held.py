"""Chunks held: what a stage holds of micro-batches, chunk after chunk, in the order of its schedule.

    chunks                                        F0  F1  F2  B0  F3  B1  ...
    saved for the backward pass                    1   2   3   3   3   3
    whether gradients are being added up           0   0   0   1   1   1

Nothing else is estimated here: with these counts a stage's bytes follow from those of its layers (`stages`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.bounds.chunk_states import enough, moments
from strategy.layout.schedule import Schedule

IntArray = npt.NDArray[np.int64]


HELD = (
    "saved_bytes",
    "waiting_bytes",
    "deferred_bytes",
    "sum_bytes",
    "summed_bytes",
    "behind_bytes",
    "ahead_bytes",
)
"""Bytes of a part that the rows of `chunks_held` count, in their order."""
SAVED = HELD.index("saved_bytes")


@lru_cache(maxsize=1 << 12)
def chunks_held(schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int) -> IntArray:
    """(N, HELD, laps): what is held at once, at each of N times; none holds less than another of everything.

    Micro-batches that are saved for the backward pass; that are saved for gradients of weights, which are a pass of
    their own or part of the backward pass; that these wait for. Then whether gradients are being added up, whether all
    are, and whether backward passes follow, and forward passes.
    """
    if schedule is Schedule.GPIPE:
        most = num_micro_batches if stages > 1 else 1
        last = max(most - 1, 1)
        return np.array([[most, most, 0, 0, 0, 1, 1], [last, last, 0, 1, 1, 1, 0]], np.int64)[..., None]
    few = enough(schedule, stages, num_micro_batches)
    saved, waiting, deferred, sums, behind, ahead, summed = moments(schedule, stages, stage, few, laps)
    moment = np.stack((saved, waiting, deferred, sums, summed, behind, ahead), axis=1)
    end = np.zeros_like(moment[:1])
    end[:, HELD.index("summed_bytes")] = 1
    between = np.concatenate((moment, end))
    before, after = between[:-1], between[1:]
    # A forward pass leaves more and more. A backward pass gives back what was saved, layer by layer, as it leaves sums.
    is_forward = np.any(after[:, SAVED] > before[:, SAVED], axis=1, keepdims=True)[..., None]
    return _most(np.concatenate((np.where(is_forward, np.maximum(before, after), before), after)))


def _most(rows: IntArray) -> IntArray:
    """Those rows that none holds more than of everything, the fullest first."""
    flat = rows.reshape(len(rows), -1)
    at = np.argsort(-flat.sum(1), kind="stable")
    left, kept = flat.astype(np.min_scalar_type(flat.max()))[at], []
    while at.size:
        kept.append(at[0])
        holds_more = (left > left[0]).any(1)
        left, at = left[holds_more], at[holds_more]
    return rows[kept]
