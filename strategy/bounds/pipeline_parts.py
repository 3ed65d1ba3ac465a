"""Pipeline parts: which parts of a model the stages of a pipeline are made up of, whose layers are alike.

    place 0    first, its middle layers        place i    its middle layers        last place    its middle layers, last

Places are the virtual stages along the pipeline, with layers in runs (`layer_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.makespan import PipelineTimes
from strategy.layout.schedule import at_position
from strategy.space.short_model import MIDDLE

IntArray = npt.NDArray[np.int64]
FIRST, LAST = 0, 2
"""Indices of the parts at both ends; `MIDDLE` is that between."""


def parts_at(config: PlanConfig, layers: int) -> IntArray:
    """(stages, laps, 3): how many of the first, the middle and the last part are where."""
    places = config.pp * config.virtual_stages
    runs = layer_runs(layers, config.schedule, config.pp, config.virtual_stages)
    found = np.zeros((config.pp, config.virtual_stages, 3), np.int64)
    at = [at_position(config.schedule, config.pp, place) for place in range(places)]
    for (stage, lap), run in zip(at, runs, strict=True):
        found[stage, lap, MIDDLE] = run
    for part, (stage, lap) in ((FIRST, at[0]), (LAST, at[-1])):
        found[stage, lap, part] = 1
        found[stage, lap, MIDDLE] -= 1
    return found


def stage_times(
    config: PlanConfig, layers: int, times: Mapping[str, IntArray], between_ns: tuple[int, int], *, overlaps: bool
) -> PipelineTimes:
    """What the stages do whose parts take so long.

    Args:
        config: degrees and schedule.
        layers: of the model.
        times: pass -> (3,), nanoseconds of the first, the middle and the last part.
        between_ns: what is handed on between two stages, forward and backward.
        overlaps: whether messages travel beside computation.
    """
    where, places = parts_at(config, layers), config.pp * config.virtual_stages
    forward, backward, weight = (where @ times[name] for name in ("forward_ns", "backward_ns", "weight_ns"))
    before, after = (where.sum(1) @ times[name] for name in ("before_ns", "after_ns"))
    ahead, back = (np.full(places - 1, each, np.int64) for each in between_ns)
    return PipelineTimes(forward, backward, weight, ahead, back, before, after, overlaps)
