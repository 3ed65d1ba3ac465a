"""Linear step: a configuration's step and memory as linear functions of a point.

The step is at least as long as any path through its schedule, and a stage holds at least what its rows count.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from strategy.bounds.chunk_states import ChunkState, fullest_states, states_ahead_of_backward, states_behind_forward
from strategy.bounds.crossings import FAR_KIND, NEAR_KIND, Crossings, kinds_of_places
from strategy.bounds.pipeline_parts import LAST, parts_at, stage_times
from strategy.bounds.point import (
    ADDED,
    AHEAD,
    AT_HEAD,
    AT_WORK,
    DEFERRED,
    FAR,
    HELD,
    MOVED,
    NEAR,
    PARTS,
    PASSES,
    SAVED,
    SIZE,
    SUMS,
    TIED,
    TIMES,
    WAITING,
)
from strategy.bounds.tied import TiedMessages, ends_of
from strategy.layout.config import PlanConfig
from strategy.layout.critical_path import critical_path, straight_path
from strategy.layout.step_times import Overlap, path_found
from strategy.space.short_model import MIDDLE

IntArray = npt.NDArray[np.int64]
GRADIENTS_SHARED = 2
"""From this stage of ZeRO on, gradients are exchanged in every micro-batch."""
DONE_BEFORE = 2
"""So many layers of a chunk have run backward, where one is looked at that does."""
LEAST_LAYERS = 5
"""On a stage of so many, three that follow one another are neither the first nor the last part."""


def longest_path(
    config: PlanConfig, layers: int, times_ns: IntArray, *, overlap: Overlap, crossings: Crossings, exact: bool
) -> IntArray:
    """(SIZE,): `TICKS` of every coordinate in the longest path; or, not `exact`, in the longest straight one.

    Not to be changed: whoever asks for it again has the same.

    Args:
        config: whose schedule.
        layers: of the model.
        times_ns: (MESSAGES.stop,) a point's nanoseconds, under which it is the longest.
        overlap: how communication runs beside computation.
        crossings: how its stages lie.
        exact: whether all paths count, or those that are found at once.
    """
    return _known_path(config.pipeline, layers, times_ns.tobytes(), overlap, crossings, exact)


@lru_cache(maxsize=1 << 15)
def _known_path(
    pipeline: PlanConfig, layers: int, point: bytes, overlap: Overlap, crossings: Crossings, exact: bool
) -> IntArray:
    times_ns = np.frombuffer(point, np.int64)
    ns, kinds = times_ns[TIMES].reshape(len(PASSES), -1), kinds_of_places(pipeline, crossings)
    ahead, back = np.array([times_ns[NEAR], times_ns[FAR], [0, 0]])[kinds].T
    stages = stage_times(pipeline, layers, dict(zip(PASSES, ns, strict=True)), (ahead, back), overlap)
    stages = TiedMessages(*times_ns[TIED].tolist()).beside(stages, pipeline)
    find, schedule = critical_path if exact else straight_path, pipeline.schedule
    m = pipeline.num_micro_batches
    counts = path_found(schedule, m, stages, partial(find, schedule, m)).counts
    where, row = parts_at(pipeline, layers), np.zeros(SIZE, np.int64)
    for i, name in enumerate(PASSES):
        often = getattr(counts, name)
        at = where if often.ndim == 2 else where.sum(1)
        row[PARTS * i : PARTS * i + PARTS] = often.ravel() @ at.reshape(-1, PARTS)
    for part, lying in ((NEAR, NEAR_KIND), (FAR, FAR_KIND)):
        here = kinds == lying
        row[part] = counts.forward_message_ns[here].sum(), counts.backward_message_ns[here].sum()
    first, last = ends_of(pipeline)
    row[TIED] = (counts.before_ns[first], counts.after_ns[last]) if first != last else 0
    row.flags.writeable = False
    return row


def memory_rows(config: PlanConfig, layers: int) -> IntArray:
    """(rows, SIZE): what the first and the last stage hold at one time or another; not to be changed.

    Where gradients of weights are put off, what the last stage but one holds, too: more of these may wait there. And
    where layers are not dealt out evenly, the first stage that has the most of them.
    """
    return _known_rows(config.pipeline, layers, _moves_beside(config))


@lru_cache(maxsize=1 << 13)
def _known_rows(pipeline: PlanConfig, layers: int, moves_beside: bool) -> IntArray:
    last_but_one = [max(pipeline.pp - 2, 0)] if pipeline.schedule.splits_backward else []
    most = int(parts_at(pipeline, layers).sum((1, 2)).argmax())
    stages = dict.fromkeys((0, most, *last_but_one, pipeline.pp - 1))
    found = np.array([row for stage in stages for row in _stage_rows(pipeline, layers, stage, moves_beside)])
    found.flags.writeable = False
    return found


def stage_rows(config: PlanConfig, layers: int, stage: int) -> list[IntArray]:
    """(SIZE,) each: what a stage holds when it holds most micro-batches, and most beside sums of gradients.

    Where the head is, also while that runs forward: of what the last part saves of that micro-batch, only what it holds
    then is there. And while a layer between runs backward: instead of what it saves, what it holds at its widest act.
    Where parameters or gradients are moved in every micro-batch, also while the last layer of the stage but two runs
    backward, when what those two have saved is gone, and what goes on beside others is there.
    """
    return _stage_rows(config, layers, stage, _moves_beside(config))


def _stage_rows(config: PlanConfig, layers: int, stage: int, moves_beside: bool) -> list[IntArray]:
    where, found = parts_at(config, layers)[stage], []
    m, laps = config.num_micro_batches, config.virtual_stages
    for state in fullest_states(config.schedule, config.pp, stage, m, laps):
        row = _row(state, where)
        row[DEFERRED] = np.array(state.deferred) @ where
        found.append(row)
        if moves_beside and laps == 1 and where.sum() >= LEAST_LAYERS:
            beside, done = row.copy(), np.zeros(PARTS, np.int64)
            done[LAST if where[0, LAST] else MIDDLE] += 1
            done[MIDDLE] += 1
            for part in (SAVED, WAITING):
                beside[part] -= np.minimum(beside[part], done)
            beside[MOVED] = 1
            found.append(beside)
    found += [*_at_head(config, stage, where), *_at_work(config, stage, where, moves_beside)]
    return [row for i, row in enumerate(found) if not any((row <= other).all() for other in found[:i])]


def _at_head(config: PlanConfig, stage: int, where: IntArray) -> Iterator[IntArray]:
    """(SIZE,) each: of a stage that has the head, the fullest moments in which that runs forward."""
    if not where[:, LAST].any():
        return
    lap = int(where[:, LAST].argmax())
    for state in states_behind_forward(config.schedule, config.pp, stage, lap, config.num_micro_batches, len(where)):
        row = _row(state, where)
        for part in (SAVED, WAITING):
            row[part][LAST] -= 1
        row[AT_HEAD] = 1
        yield row


def _at_work(config: PlanConfig, stage: int, where: IntArray, moves_beside: bool) -> Iterator[IntArray]:
    """(SIZE,) each: of a stage with layers between, the fullest moments in which one of these runs backward.

    The last part has done so before, or up to two layers, if one more comes next: where layers are laid out in several
    ways, those that have run so are of all ways in turn.
    """
    m, laps = config.num_micro_batches, config.virtual_stages
    for state, lap in states_ahead_of_backward(config.schedule, config.pp, stage, m, laps):
        run, done = where[lap], np.zeros(PARTS, np.int64)
        if not run[MIDDLE]:
            continue
        done[LAST] = run[LAST]
        done[MIDDLE] = max(min(DONE_BEFORE - run[LAST], run[MIDDLE] - 2), 0)
        row, own = _row(state, where), np.zeros(PARTS, np.int64)
        own[MIDDLE] = 1
        row[SAVED] -= done + own
        row[WAITING] -= own if config.schedule.splits_backward else done + own
        row[AT_WORK] = 1
        # of layers that are laid out alike, and not next to the end of the stage
        is_between = done[MIDDLE] and done.sum() == DONE_BEFORE and run[MIDDLE] - done[MIDDLE] > 1
        row[MOVED] = is_between and moves_beside
        yield row


def _row(state: ChunkState, where: IntArray) -> IntArray:
    """(SIZE,): what a state counts of the parts, (laps, parts)."""
    row = np.zeros(SIZE, np.int64)
    for part, counts in (
        (HELD, state.behind),
        (AHEAD, state.ahead),
        (SUMS, state.sums),
        (SAVED, state.saved),
        (WAITING, state.waiting),
        (ADDED, state.deferred),
    ):
        row[part] = np.array(counts) @ where
    return row


def _moves_beside(config: PlanConfig) -> bool:
    """Whether parameters are gathered, or gradients exchanged, in every micro-batch, beside passes in one piece."""
    often = config.zero_stage >= GRADIENTS_SHARED or config.num_micro_batches == 1
    return often and not config.schedule.splits_backward
