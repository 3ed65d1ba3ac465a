"""Chunk states: what a stage holds of its micro-batches at a moment between two chunks, by the order of these.

    chunks of a stage      F0   F1   B0   F2   B1   B2
    saved                0    1    2    1    2    1    0        by a forward pass, for the backward pass
    sums                 0    0    0    1    1    1    0        whether gradients are being added up
    summed               0    0    0    0    0    0    1        whether all are
    behind               1    1    1    1    1    1    0        whether backward passes follow

All that one state counts is there at once; what different states count need not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order

IntArray = npt.NDArray[np.int64]
PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT)
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


@lru_cache(maxsize=1 << 13)
def fullest_states(
    schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int
) -> tuple[ChunkState, ...]:
    """The states in which a stage holds most of micro-batches, most beside its sums, and most of what is deferred."""
    few = enough(schedule, stages, num_micro_batches)
    if schedule is Schedule.GPIPE and stages > 1:
        # All forward passes come first, however many there are.
        m = num_micro_batches
        known = [ChunkState((m,), (m,), (0,), (0,), (1,), (0,), (0,))]
        known += [ChunkState((m - 1,), (m - 1,), (0,), (1,), (1,), (0,), (0,))] if m > 1 else []
        return tuple(known)
    numbers = moments(schedule, stages, stage, few, laps)
    saved, waiting, deferred, sums, behind, ahead, _ = numbers.sum(2)
    held = behind, saved + waiting, sums, ahead
    fullest, summed = _first_greatest(held), _first_greatest((sums + behind, *held))
    put_off = (_first_greatest((deferred, behind, waiting, sums, ahead)),) if deferred.any() else ()
    return tuple(_state(numbers[:, at]) for at in dict.fromkeys((fullest, summed, *put_off)))


@lru_cache(maxsize=1 << 13)
def states_behind_forward(
    schedule: Schedule, stages: int, stage: int, lap: int, num_micro_batches: int, laps: int
) -> tuple[ChunkState, ...]:
    """Of the states right behind a forward pass of a lap, that of most micro-batches, and that of most beside sums."""
    if schedule is Schedule.GPIPE and stages > 1:
        return fullest_states(schedule, stages, stage, num_micro_batches, laps)[:1]
    few = enough(schedule, stages, num_micro_batches)
    chunks = list(chunk_order(schedule, stages, stage, few, laps))
    behind = [at for at, chunk in enumerate(chunks, 1) if (chunk.phase, chunk.lap) == (Phase.FORWARD, lap)]
    numbers = moments(schedule, stages, stage, few, laps)[:, [at for at in behind if at < len(chunks)]]
    saved, waiting, _, sums, later, ahead, _ = numbers.sum(2)
    held = later, saved + waiting, sums, ahead
    fullest = _first_greatest(held), _first_greatest((sums + later, *held))
    return tuple(_state(numbers[:, at]) for at in dict.fromkeys(fullest))


@lru_cache(maxsize=1 << 13)
def states_ahead_of_backward(
    schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int
) -> tuple[tuple[ChunkState, int], ...]:
    """Of the states right ahead of a backward pass, those of the same, each with the lap of that pass."""
    if schedule is Schedule.GPIPE and stages > 1:
        return tuple((state, 0) for state in fullest_states(schedule, stages, stage, num_micro_batches, laps))
    few = enough(schedule, stages, num_micro_batches)
    chunks = list(chunk_order(schedule, stages, stage, few, laps))
    ahead_of = [at for at, chunk in enumerate(chunks) if chunk.phase is Phase.BACKWARD]
    numbers = moments(schedule, stages, stage, few, laps)[:, ahead_of]
    saved, waiting, _, sums, behind, ahead, _ = numbers.sum(2)
    held = behind, saved + waiting, sums, ahead
    fullest = _first_greatest(held), _first_greatest((sums + behind, *held))
    return tuple((_state(numbers[:, at]), chunks[ahead_of[at]].lap) for at in dict.fromkeys(fullest))


@lru_cache(maxsize=1 << 16)
def fullest_counts(
    schedule: Schedule, stages: int, num_micro_batches: int, laps: int
) -> tuple[tuple[int, int, int], ...]:
    """Of the first stage in these states: in how many laps parameters and sums are held, and micro-batches saved."""
    found = fullest_states(schedule, stages, 0, num_micro_batches, laps)
    return tuple((sum(state.behind), sum(state.sums), sum(state.saved)) for state in found)


def enough(schedule: Schedule, stages: int, num_micro_batches: int) -> int:
    """Of so many micro-batches, as many as show all that there is; GPipe's apart."""
    return min(num_micro_batches, ROUNDS * stages if schedule is Schedule.INTERLEAVED else ROUNDS * stages + 2)


def moments(schedule: Schedule, stages: int, stage: int, m: int, laps: int) -> IntArray:
    """(7, chunks, laps): the numbers of `ChunkState` ahead of every chunk."""
    chunks = list(chunk_order(schedule, stages, stage, m, laps))
    done = np.zeros((len(PASSES), len(chunks) + 1, laps), np.int64)
    phases, at_lap = [PASSES.index(chunk.phase) for chunk in chunks], [chunk.lap for chunk in chunks]
    done[phases, np.arange(1, len(chunks) + 1), at_lap] = 1
    forward, backward, weight = done.cumsum(1)[:, :-1]
    last = weight if schedule.splits_backward else backward
    adding = (last > 0) & (last < m)
    numbers = forward - backward, forward - last, backward - last, adding, backward < m, forward < m, last == m
    return np.array(numbers, np.int64)


def _state(numbers: IntArray) -> ChunkState:
    """Of numbers by lap: (7, laps)."""
    return ChunkState(*(tuple(each) for each in numbers.tolist()))


def _first_greatest(keys: Sequence[IntArray]) -> int:
    """Where the first of these is greatest, of equal ones the second, and so on; the first such place."""
    left = np.arange(len(keys[0]))
    for key in keys:
        left = left[key[left] == key[left].max()]
    return int(left[0])
