"""Quick bound: the least that a candidate can take, by its least work on every rank, without solving anything."""

from __future__ import annotations

from functools import lru_cache

from strategy.bounds.least_steps import least_steps_ns
from strategy.bounds.least_work import LeastWork
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.hardware.cluster import Cluster
from strategy.layout.config import PlanConfig
from strategy.models import Model
from strategy.passes.training import Training
from strategy.space.request import Request


def quick_bound_ns(request: Request, config: PlanConfig) -> int:
    """A lower bound of a step's nanoseconds."""
    (found,) = least_steps_ns(least_work(request), [config])
    return found


def least_work(request: Request) -> LeastWork:
    """What the training that is asked for takes at least, under its pins."""
    pins, cost = request.pins, request.cost
    unusual = bool(pins.layouts or pins.tiles or pins.zero_owner)
    measured = tuple(sorted(cost.coefficients.items()))
    stages = bool(pins.numbered_stages)
    return _least_work(request.model, request.training, cost.cluster, measured, cost.act_overhead_s, unusual, stages)


@lru_cache(maxsize=8)
def _least_work(
    model: Model,
    training: Training,
    cluster: Cluster,
    measured: tuple[tuple[CostKey, Coefficients], ...],
    act_overhead_s: float,
    unusual: bool,
    stages_are_pinned: bool,
) -> LeastWork:
    return LeastWork(model, training, CostModel(cluster, dict(measured), act_overhead_s), unusual, stages_are_pinned)
