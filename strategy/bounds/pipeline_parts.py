"""Pipeline parts: which parts of a model the stages of a pipeline are made up of, whose layers are alike.

    place 0    first, its middle layers        place i    its middle layers        last place    its middle layers, last

Places are the virtual stages along the pipeline, with layers in runs (`layer_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.objective import CHUNKS
from strategy.layout.schedule import at_position
from strategy.layout.step_times import COPIED, COVERED, OVERLAPPED, WAITED, Overlap, StepTimes
from strategy.space.short_model import MIDDLE

IntArray = npt.NDArray[np.int64]
FIRST, LAST = 0, 2
"""Indices of the parts at both ends; `MIDDLE` is that between."""
OF_CHUNKS = frozenset((*CHUNKS.values(), *OVERLAPPED.values(), *WAITED.values(), *COVERED.values(), *COPIED.values()))
"""What counts on every lap."""


def parts_at(config: PlanConfig, layers: int) -> IntArray:
    """(stages, laps, 3): how many of the first, the middle and the last part are where; not to be changed."""
    return _known_parts(config.pipeline, layers)


@lru_cache(maxsize=1 << 13)
def _known_parts(config: PlanConfig, layers: int) -> IntArray:
    runs = config.runs or layer_runs(layers, config.schedule, config.pp, config.virtual_stages)
    found = parts_in(config, np.array(runs, np.int64))
    found.flags.writeable = False
    return found


def parts_in(config: PlanConfig, runs: IntArray) -> IntArray:
    """(..., stages, laps, 3): the same where places have so many layers, (..., places)."""
    found = np.zeros((*runs.shape[:-1], config.pp, config.virtual_stages, 3), np.int64)
    at = [at_position(config.schedule, config.pp, place) for place in range(runs.shape[-1])]
    for place, (stage, lap) in enumerate(at):
        found[..., stage, lap, MIDDLE] = runs[..., place]
    for part, (stage, lap) in ((FIRST, at[0]), (LAST, at[-1])):
        found[..., stage, lap, part] = 1
        found[..., stage, lap, MIDDLE] -= 1
    return found


def stage_times(
    config: PlanConfig,
    layers: int,
    times: Mapping[str, IntArray],
    between_ns: tuple[int | IntArray, int | IntArray],
    overlap: Overlap,
) -> StepTimes:
    """What the stages do whose parts take so long.

    Args:
        config: degrees and schedule.
        layers: of the model.
        times: pass -> (3,), nanoseconds of the first, the middle and the last part.
        between_ns: what is handed on between two stages, forward and backward, or from each place to the next.
        overlap: how communication runs beside computation.
    """
    return times_of(parts_at(config, layers), times, between_ns, overlap)


def times_of(
    where: IntArray,
    times: Mapping[str, IntArray],
    between_ns: tuple[int | IntArray, int | IntArray],
    overlap: Overlap,
) -> StepTimes:
    """The same of so many parts on each stage and lap, (..., stages, laps, 3).

    Parts take as long everywhere, (3,), or on each stage, (stages, 3), and so do messages, or those of each place.
    """
    stages, laps = where.shape[-3:-1]
    each = np.array(list(times.values()), np.int64).reshape(len(times), -1, where.shape[-1])
    total = np.einsum("...slp,nsp->n...sl", where, np.broadcast_to(each, (len(times), stages, where.shape[-1])))
    found = {name: one if name in OF_CHUNKS else one.sum(-1) for name, one in zip(times, total, strict=True)}
    shape = (*where.shape[:-3], stages * laps - 1)
    ahead, back = (np.broadcast_to(np.asarray(each, np.int64), shape) for each in between_ns)
    return StepTimes(**found, forward_message_ns=ahead, backward_message_ns=back, overlap=overlap)
