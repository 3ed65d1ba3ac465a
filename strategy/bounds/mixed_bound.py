"""Mixed bound: the least step of a pipeline whose stages are of several types of devices, however layers are cut.

A stage s of type g that has the part x_s of the layers takes x_s t_g of a micro-batch at least, t_g being what all
layers take on that type (`least_work`), and the step m times as long. The parts add up to one, so

    makespan >= m max_s x_s t_g(s) >= m / sum_s 1 / t_g(s)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strategy.base.units import to_ns
from strategy.bounds.least_work import NEGLIGIBLE
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import PlanConfig
from strategy.space.axis_orders import placements_of
from strategy.space.request import Request


def mixed_bounds_ns(request: Request, configs: Sequence[PlanConfig]) -> list[int]:
    """Lower bounds of the nanoseconds of a step, of stages in any order; a stage of several types is as slow as each.

    A model without layers of its own has none: 0.
    """
    cluster = request.cost.cluster
    layers_s = np.empty((len(cluster.types), len(configs)))
    for group, one in enumerate(cluster.types):
        work = least_work(replace(request, cost=replace(request.cost, cluster=one)))
        work.look_up(configs)
        for i, least in enumerate(map(work.seconds, configs)):
            layers_s[group, i] = sum(each[1] for each in (least.forward_s, least.backward_s, least.weight_s))
    found = []
    for config, each_s in zip(configs, layers_s.T, strict=True):
        stages = [list(cluster.groups_of(placement.devices)) for placement in placements_of(config)]
        slowest = np.array([each_s[groups].max() for groups in stages])
        least_s = config.num_micro_batches / (1 / slowest).sum() if slowest.all() else 0.0
        found.append(max(0, to_ns(float(least_s) * (1 - NEGLIGIBLE)) - 1))
    return found
