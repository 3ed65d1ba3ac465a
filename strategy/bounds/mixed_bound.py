"""Mixed bound: the least step of a pipeline whose stages are of several types of devices, however layers are cut.

A stage s of type g that has the part x_s of the layers takes x_s t_g of a micro-batch at least, t_g being what all
layers take on that type (`least_work`), and the step m times as long. The parts add up to one, so

    makespan >= m max_s x_s t_g(s) >= m / sum_s 1 / t_g(s)
"""

from __future__ import annotations

from dataclasses import replace

from strategy.base.units import to_ns
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import PlanConfig
from strategy.space.candidates import Request, placements_of


def mixed_bound_ns(request: Request, config: PlanConfig) -> int:
    """A lower bound of a step's nanoseconds, of stages in any order; a stage of several types is as slow as one."""
    cluster = request.cost.cluster
    layers_s = []
    for one in cluster.types:
        least = least_work(replace(request, cost=replace(request.cost, cluster=one))).seconds(config)
        layers_s.append(sum(each[1] for each in (least.forward_s, least.backward_s, least.weight_s)))
    of_stages = [cluster.groups_of(placement.devices) for placement in placements_of(config)]
    rates = [min(1 / layers_s[group] if layers_s[group] else float("inf") for group in each) for each in of_stages]
    return max(0, to_ns(config.num_micro_batches / sum(rates)) - 1)
