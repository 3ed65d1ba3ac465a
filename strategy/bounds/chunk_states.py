"""Chunk states: what a stage holds of its micro-batches at a moment between two chunks, by the order of these.

    chunks of a stage      F0   F1   B0   F2   B1   B2
    saved                0    1    2    1    2    1    0        by a forward pass, for the backward pass
    sums                 0    0    0    1    1    1    0        whether gradients are being added up
    summed               0    0    0    0    0    0    1        whether all are
    behind               1    1    1    1    1    1    0        whether backward passes follow

All that one state counts is there at once; what different states count need not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order

IntArray = npt.NDArray[np.int64]
ROUNDS = 3
"""Micro-batches, per stage, after which a stage holds no more at once."""


@dataclass(frozen=True, slots=True)
class ChunkState:
    """Numbers of micro-batches, and whether there is something, by lap: (laps,).

    Attributes:
        saved: done by the forward pass, not by the backward pass.
        waiting: done by the forward pass, not by what makes the gradients of weights.
        deferred: done by the backward pass, not by the gradients of weights, where these are a pass of their own.
        sums: whether gradients are being added up: some are, and some follow.
        behind, ahead: whether backward passes follow, and forward passes.
        summed: whether all gradients are added up, so that what they are exchanged for may be there instead.
    """

    saved: tuple[int, ...]
    waiting: tuple[int, ...]
    deferred: tuple[int, ...]
    sums: tuple[int, ...]
    behind: tuple[int, ...]
    ahead: tuple[int, ...]
    summed: tuple[int, ...]

    @property
    def held(self) -> tuple[int, int, int, int]:
        """What says of two states which holds more, as a rule."""
        return sum(self.behind), sum(self.saved) + sum(self.waiting), sum(self.sums), sum(self.ahead)


@lru_cache(maxsize=1 << 13)
def fullest_states(
    schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int
) -> tuple[ChunkState, ...]:
    """The state in which a stage holds most of micro-batches, and that in which it holds most beside its sums."""
    few = enough(schedule, stages, num_micro_batches)
    if schedule is Schedule.GPIPE and stages > 1:
        # All forward passes come first, however many there are.
        m = num_micro_batches
        known = [ChunkState((m,), (m,), (0,), (0,), (1,), (0,), (0,))]
        known += [ChunkState((m - 1,), (m - 1,), (0,), (1,), (1,), (0,), (0,))] if m > 1 else []
        return tuple(known)
    moments = states(schedule, stages, stage, few, laps)
    fullest = max(moments, key=lambda state: state.held)
    summed = max(moments, key=lambda state: (sum(state.sums) + sum(state.behind), state.held))
    return tuple(dict.fromkeys((fullest, summed)))


def enough(schedule: Schedule, stages: int, num_micro_batches: int) -> int:
    """Of so many micro-batches, as many as show all that there is; GPipe's apart."""
    return min(num_micro_batches, ROUNDS * stages if schedule is Schedule.INTERLEAVED else ROUNDS * stages + 2)


def states(schedule: Schedule, stages: int, stage: int, m: int, laps: int) -> list[ChunkState]:
    """That ahead of every chunk of a stage, in order."""
    splits, found = schedule.splits_backward, []
    done = {phase: np.zeros(laps, np.int64) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT)}
    forward, backward = done[Phase.FORWARD], done[Phase.BACKWARD]
    last = done[Phase.WEIGHT] if splits else backward
    for chunk in chunk_order(schedule, stages, stage, m, laps):
        saved, waiting, deferred = forward - backward, forward - last, backward - last
        adding = (last > 0) & (last < m)
        numbers = (saved, waiting, deferred, adding, backward < m, forward < m, last == m)
        found.append(ChunkState(*(tuple(np.asarray(each, np.int64).tolist()) for each in numbers)))
        done[chunk.phase][chunk.lap] += 1
    return found
