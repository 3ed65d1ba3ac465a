"""Configurations: every way to cut devices, batch and time that the pins allow, as columns, with what bounds each.

One row is one configuration: degrees, micro-batch, schedule with its virtual stages, what is computed again, and the
stage of ZeRO (0 leaves stages 1 and 2 to the choice of layouts). A tensor axis shares out every layer, so that its
ranks divide the heads of attention, as trainers ask; a context axis splits long sequences. Rows that differ in schedule
alone share a *mesh group*, for which the choice of layouts is one problem. Bounds are of `least_work` and
`makespan_bound`: of time, over all layouts and all cuts into stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from strategy.bounds.least_work import LeastWork, least_steps_ns
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.space.candidates import Request, degrees_of, divisors, recomputable

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZBV, Schedule.GPIPE)
"""Those that a search looks at; OneFlow's order is 1F1B's with more memory."""
UNEVEN = 0.05
"""By this part stages may have more layers to pass than if these were dealt out equally, for more laps."""
LEAST_POSITIONS = 2**15
"""Shorter runs of positions than this are not worth what is exchanged for attention."""


@dataclass(frozen=True, slots=True)
class MeshGroup:
    """Configurations with one mesh, micro-batch and way to save memory, and the least nanoseconds of each."""

    configs: tuple[PlanConfig, ...]
    bounds_ns: tuple[int, ...]

    @property
    def bound_ns(self) -> int:
        """Of all of them."""
        return min(self.bounds_ns)

    @property
    def config(self) -> PlanConfig:
        """The one with the least bound."""
        return self.configs[self.bounds_ns.index(self.bound_ns)]


def mesh_groups(request: Request, work: LeastWork) -> list[MeshGroup]:
    """All configurations, in groups, least bound first."""
    groups = list(listed(request))
    bounds = iter(least_steps_ns(work, [config for group in groups for config in group]))
    found = [MeshGroup(group, tuple(itertools.islice(bounds, len(group)))) for group in groups]
    return sorted(found, key=lambda group: (group.bound_ns, group.config.pp, group.config.tp, group.config.micro_batch))


def listed(request: Request) -> Iterator[tuple[PlanConfig, ...]]:
    """All configurations, those together that differ in schedule alone."""
    heads, layers = _heads(request), max(request.model.layers, 1)
    for plain in degrees_of(request, context_degrees(request)):
        if plain.pp > layers or (request.pins.tp is None and heads % plain.tp):
            continue
        for recompute, zero in itertools.product(_recomputes(request), _zero_stages(request, plain)):
            schedules = tuple(_scheduled(request, replace(plain, recompute=recompute, zero_stage=zero)))
            if schedules:
                yield schedules


def context_degrees(request: Request) -> tuple[int, ...]:
    """Among so many ranks positions are shared out: each has `LEAST_POSITIONS` at least."""
    most = int(getattr(request.model, "sequence", 0)) // LEAST_POSITIONS
    return tuple(cp for cp in divisors(request.devices) if cp == 1 or cp <= most)


def _heads(request: Request) -> int:
    """Of attention, among which a tensor axis shares out every layer; 0, which all degrees divide, of other layers."""
    return int(getattr(request.model, "heads", 0))


def _recomputes(request: Request) -> tuple[Recompute, ...]:
    if request.pins.recompute is not None:
        return (request.pins.recompute,)
    return (Recompute.NONE, *recomputable(request.model))


def _zero_stages(request: Request, config: PlanConfig) -> tuple[int, ...]:
    if request.pins.zero_stage is not None:
        return (request.pins.zero_stage,) if config.dp > 1 or not request.pins.zero_stage else ()
    return (0, 3) if config.dp > 1 else (0,)


def _scheduled(request: Request, config: PlanConfig) -> Iterator[PlanConfig]:
    """The configuration under every schedule that there is for it; without a pipeline they are all one."""
    pins, depth = request.pins, request.model.layers // config.pp
    if config.pp == 1 and pins.schedule is None:
        yield config
        return
    for schedule in SCHEDULES if pins.schedule is None else (pins.schedule,):
        for laps in _laps(request, schedule, config.pp):
            problem = schedule_problem(schedule, config.pp, laps, config.num_micro_batches)
            if problem is None and laps <= max(depth, 1):
                yield replace(config, schedule=schedule, virtual_stages=laps)


def _laps(request: Request, schedule: Schedule, stages: int) -> Iterator[int]:
    """How often a micro-batch may pass all stages: where these get equally many layers, or nearly."""
    layers, pins = request.model.layers, request.pins
    if pins.virtual_stages is not None:
        yield pins.virtual_stages
    elif schedule is not Schedule.INTERLEAVED:
        yield schedule.default_laps
    else:
        for laps in range(2, layers // stages + 1):
            fullest = -(-layers // (stages * laps)) * stages * laps
            if pins.schedule is not None or fullest <= (1 + UNEVEN) * layers:
                yield laps
