"""Least steps: what a step of each configuration takes at least, by its least work and its schedule.

The schedule's own recurrence over the least times of the stages is a bound, for no time of a stage can be less; over
all cuts into stages where layers are alike (`makespan_bound`), over the cut that there is where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strategy.base.units import to_ns
from strategy.bounds.least_work import LeastSeconds, LeastWork, key_of
from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.makespan import PipelineTimes, makespan_ns
from strategy.layout.makespan_bound import makespan_bound_ns
from strategy.layout.schedule import at_position


def least_steps_ns(work: LeastWork, configs: Sequence[PlanConfig], known_ns: npt.ArrayLike = 0) -> list[int]:
    """What a step of each configuration takes at least.

    Args:
        work: of the training.
        configs: some of it.
        known_ns: (configs,) what a micro-batch is known to take at least in what follows samples, in all layers and
            passes together.
    """
    alike: dict[object, int] = {}
    which = [alike.setdefault(key_of(config), len(alike)) for config in configs]
    firsts = [configs[first] for first in np.unique(which, return_index=True)[1]]
    work.look_up(firsts)
    work.find(firsts)
    totals = np.array([_totals_ns(work.seconds(config)) for config in firsts], np.int64).reshape(-1, 5)
    forward, backward, weight, step, following = totals[np.array(which, np.int64)].T
    more = np.maximum(np.broadcast_to(known_ns, len(configs)) - following - 3, 0)
    shapes = np.array([(c.pp, c.num_micro_batches, c.virtual_stages) for c in configs], np.int64).reshape(-1, 3)
    found = np.zeros(len(configs), np.int64)
    schedules = np.array([c.schedule for c in configs])
    for schedule in dict.fromkeys(c.schedule for c in configs):
        rows = np.flatnonzero(schedules == schedule)
        stages, count, laps = shapes[rows].T
        found[rows] = makespan_bound_ns(
            schedule,
            stages,
            count,
            laps,
            forward_ns=forward[rows],
            backward_ns=backward[rows],
            weight_ns=weight[rows],
            step_ns=step[rows],
            more_ns=more[rows],
        )
    if not any(work.has_unlike_layers(config) for config in firsts):
        return found.tolist()
    keys = [
        (alike, one.pp, one.num_micro_batches, one.schedule, one.virtual_stages, one.runs)
        for alike, one in zip(which, configs, strict=True)
    ]
    stages_ns = {key: _by_stages_ns(work, config) for key, config in dict(zip(keys, configs, strict=True)).items()}
    return [max(int(bound), stages_ns[key]) for bound, key in zip(found, keys, strict=True)]


def _totals_ns(least: LeastSeconds) -> list[int]:
    """Of all of a pass: forward, backward, gradients of weights, once per step; and of what follows samples."""
    passes = (least.forward_s, least.backward_s, least.weight_s, least.step_s)
    return [*(max(to_ns(sum(each)) - 1, 0) for each in passes), to_ns(least.following_s)]


def _by_stages_ns(work: LeastWork, config: PlanConfig) -> int:
    """What a step takes at least with layers that are unlike where they are; 0 of others, and without a pipeline."""
    layers = None if config.pp == 1 or work.stages_are_pinned else work.of_layers_ns(config)
    if layers is None:
        return 0
    runs = config.runs or layer_runs(layers.shape[1], config.schedule, config.pp, config.virtual_stages)
    times = np.zeros((3, config.pp, config.virtual_stages), np.int64)
    ends = np.cumsum(runs)
    for place, (run, end) in enumerate(zip(runs, ends, strict=True)):
        stage, lap = at_position(config.schedule, config.pp, place)
        times[:, stage, lap] = layers[:, end - run : end].sum(1)
    return makespan_ns(config.schedule, config.num_micro_batches, PipelineTimes.of_passes(*times))
