"""Linear step: a configuration's step and memory as linear functions of a point.

The step is at least as long as any path through its schedule, and a stage holds at least what its rows count.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.bounds.pipeline_parts import LAST, parts_at, stage_times
from strategy.bounds.point import (
    AHEAD,
    DEFERRED,
    HELD,
    MESSAGES,
    MOVED,
    PARTS,
    PASSES,
    SAVED,
    SIZE,
    SUMS,
    TIMES,
    WAITING,
)
from strategy.graph.graph import Phase
from strategy.layout.config import PlanConfig
from strategy.layout.critical_path import critical_path, straight_path
from strategy.layout.schedule import Schedule, chunk_order
from strategy.layout.step_times import Overlap, in_ticks, mean_path
from strategy.space.short_model import MIDDLE

IntArray = npt.NDArray[np.int64]
GRADIENTS_SHARED = 2
"""From this stage of ZeRO on, gradients are exchanged in every micro-batch."""
LEAST_LAYERS = 5
"""On a stage of so many, three that follow one another are neither the first nor the last part."""


def longest_path(config: PlanConfig, layers: int, times_ns: IntArray, *, overlap: Overlap, exact: bool) -> IntArray:
    """(SIZE,): `TICKS` of every coordinate in the longest path; or, not `exact`, in the longest straight one.

    Args:
        config: whose schedule.
        layers: of the model.
        times_ns: (MESSAGES.stop,) a point's nanoseconds, under which it is the longest.
        overlap: how communication runs beside computation.
        exact: whether all paths count, or those that are found at once.
    """
    ns, (ahead, back) = times_ns[TIMES].reshape(len(PASSES), -1), times_ns[MESSAGES].tolist()
    stages = stage_times(config, layers, dict(zip(PASSES, ns, strict=True)), (ahead, back), overlap)
    find, schedule = critical_path if exact else straight_path, config.schedule
    paths = find(schedule, config.num_micro_batches, in_ticks(schedule, stages))
    counts = mean_path(schedule, stages, paths).counts
    where, row = parts_at(config, layers), np.zeros(SIZE, np.int64)
    for i, name in enumerate(PASSES):
        often = getattr(counts, name)
        at = where if often.ndim == 2 else where.sum(1)
        row[PARTS * i : PARTS * i + PARTS] = often.ravel() @ at.reshape(-1, PARTS)
    row[MESSAGES] = counts.forward_message_ns.sum(), counts.backward_message_ns.sum()
    return row


def memory_rows(config: PlanConfig, layers: int) -> IntArray:
    """(rows, SIZE): what the first and the last stage hold at one time or another; not to be changed."""
    return _known_rows(config, layers)


@lru_cache(maxsize=1 << 13)
def _known_rows(config: PlanConfig, layers: int) -> IntArray:
    stages = dict.fromkeys((0, config.pp - 1))
    found = np.array([row for stage in stages for row in stage_rows(config, layers, stage)])
    found.flags.writeable = False
    return found


def stage_rows(config: PlanConfig, layers: int, stage: int) -> list[IntArray]:
    """(SIZE,) each: what a stage holds when it holds most micro-batches, without and with sums of gradients.

    Where parameters or gradients are moved in every micro-batch: also while the last layer of the stage but two runs
    backward, when what those two have saved is gone, and what goes on beside others is there.
    """
    where, found = parts_at(config, layers)[stage], []
    for sums in (False, True):
        row = np.zeros(SIZE, np.int64)
        row[HELD] = where.sum(0)
        row[SUMS] = row[HELD] * sums
        row[AHEAD] = row[HELD] * _forwards_follow(config, stage, sums=sums)
        for part, in_flight in blocks(config, stage, sums=sums):
            row[part] = np.array(in_flight) @ where
        found.append(row)
        if config.num_micro_batches > sums and _moves_beside(config) and where.sum() >= LEAST_LAYERS:
            at_work, done = row.copy(), np.zeros(PARTS, np.int64)
            done[LAST if where[0, LAST] else MIDDLE] += 1
            done[MIDDLE] += 1
            for part in (SAVED, WAITING):
                at_work[part] -= np.minimum(at_work[part], done)
            at_work[MOVED] = 1
            found.append(at_work)
    return found


def _moves_beside(config: PlanConfig) -> bool:
    """Whether parameters are gathered, or gradients exchanged, in every micro-batch, beside passes in one piece."""
    often = config.zero_stage >= GRADIENTS_SHARED or config.num_micro_batches == 1
    return often and config.virtual_stages == 1 and not config.schedule.splits_backward


def _forwards_follow(config: PlanConfig, stage: int, *, sums: bool) -> bool:
    """Whether forward passes follow, of every lap, when a stage holds most micro-batches at once."""
    most = max(chunks_in_flight(config, stage, Phase.FORWARD, Phase.BACKWARD, sums=False))
    few = most + sums if config.virtual_stages == 1 else 2 * most + config.pp
    return config.num_micro_batches > few


def blocks(config: PlanConfig, stage: int, *, sums: bool) -> tuple[tuple[slice, tuple[int, ...]], ...]:
    """What a stage holds of micro-batches: (coordinates of a point, (laps,) how many of them are held at once).

    So many blocks there are of every such tensor, by the order of the stage's chunks; `sums`: while gradients are added
    up.
    """
    last = _last(config)
    spans = (
        (SAVED, Phase.FORWARD, Phase.BACKWARD),
        (WAITING, Phase.FORWARD, last),
        (DEFERRED, Phase.BACKWARD, last),
    )
    return tuple((part, chunks_in_flight(config, stage, written, read, sums=sums)) for part, written, read in spans)


def chunks_in_flight(config: PlanConfig, stage: int, written: Phase, read: Phase, *, sums: bool) -> tuple[int, ...]:
    """(laps,): micro-batches that are held at once from one pass to another; `sums`: while gradients are added up.

    What the backward pass leaves to the gradients of weights counts where several micro-batches wait at once: then it
    has a place of its own, beside what others have saved.
    """
    if written is read:
        return (0,) * config.virtual_stages
    count = config.num_micro_batches
    most = _in_flight(config.schedule, config.pp, stage, count, config.virtual_stages, written, read)
    if written is Phase.BACKWARD:
        enough = 4 * config.pp * config.virtual_stages <= count
        return tuple(blocks if enough and blocks > 1 else 0 for blocks in most)
    return tuple(blocks - (sums and blocks >= count) for blocks in most)


def _last(config: PlanConfig) -> Phase:
    """The pass after which nothing is held of a micro-batch."""
    return Phase.WEIGHT if config.schedule.splits_backward else Phase.BACKWARD


def _in_flight(
    schedule: Schedule, stages: int, stage: int, m: int, laps: int, written: Phase, read: Phase
) -> tuple[int, ...]:
    few = 3 * stages if schedule is Schedule.INTERLEAVED else 2 * stages + 2
    if schedule is Schedule.GPIPE or m <= few:
        return _most_in_flight(schedule, stages, stage, m, laps, written, read)
    return _most_in_flight(schedule, stages, stage, few, laps, written, read)


@lru_cache(maxsize=1 << 12)
def _most_in_flight(
    schedule: Schedule, stages: int, stage: int, m: int, laps: int, written: Phase, read: Phase
) -> tuple[int, ...]:
    if schedule is Schedule.GPIPE:
        return (m if stages > 1 else 1,)
    now, most = [0] * laps, [0] * laps
    for chunk in chunk_order(schedule, stages, stage, m, laps):
        if chunk.phase is written:
            now[chunk.lap] += 1
            most[chunk.lap] = max(most[chunk.lap], now[chunk.lap])
        elif chunk.phase is read:
            now[chunk.lap] -= 1
    return tuple(most)
