"""The pairs of `sbplan bench objective`: models, clusters and batches, each with a plan pinned at random.

Three of five pairs are pipelines on 64 GPUs or more, whose schedules take turns; so do those of the others, with no
pipeline among them. Degrees, micro-batches, recomputing and ZeRO are drawn from what the search could choose and what
holds the state of the training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from experiments.bench.joint_problems import MANY_GPUS, JointProblem, joint_problems
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins, Request

NO_PIPELINE = "no pipeline"
SCHEDULES: tuple[Schedule | None, ...] = (None, *Schedule)
QUOTAS: Mapping[str, float] = {**{str(schedule): 0.1 for schedule in Schedule}, "64 GPUs or more, pipeline": 0.5}
"""What the least share of the pairs has to be; of few pairs, rounded down."""
ZERO = (0, 0, 1, 1, 2, 3)
RECOMPUTES = (Recompute.NONE, Recompute.NONE, *Recompute)
MOST_MICRO_BATCHES = 64
PARAMETER_BYTES, STATE_BYTES, FILLED = 6, 12, 0.5
"""Of a parameter with its gradient, of what its update holds, and the part of a device's memory these may fill."""


@dataclass(frozen=True, slots=True)
class PinnedProblem:
    """A problem with everything pinned but layouts."""

    name: str
    request: Request
    config: PlanConfig

    @property
    def schedule(self) -> str:
        """The quota that it counts for."""
        return str(self.config.schedule) if self.config.pp > 1 else NO_PIPELINE

    @property
    def covers(self) -> frozenset[str]:
        """All quotas that it counts for."""
        large = self.config.pp > 1 and self.request.devices >= MANY_GPUS
        return frozenset({self.schedule, *(["64 GPUs or more, pipeline"] if large else [])})


def pinned_problems(number: int, seed: int) -> Iterator[PinnedProblem]:
    """Pair `number` of a seed, then others that may stand in for it: without end."""
    lap, place = divmod(number, 5)
    large = place < 3
    turn = 3 * lap + place if large else 2 * lap + place - 3
    schedule = tuple(Schedule)[turn % len(Schedule)] if large else SCHEDULES[turn % len(SCHEDULES)]
    draw = random.Random(f"{seed} {number}")
    while True:
        for problem in joint_problems(8, draw.randrange(2**32)):
            if (problem.cluster.devices >= MANY_GPUS) is large:
                found = _pinned(draw, problem, schedule)
                if found is not None:
                    yield found
                    break


def _pinned(draw: random.Random, problem: JointProblem, schedule: Schedule | None) -> PinnedProblem | None:
    """A configuration of a problem under a schedule, or without a pipeline; None if it has none that may be drawn."""
    request = replace(problem.request, incumbents=True, gap=0.01)
    zero, recompute = draw.choice(ZERO), draw.choice(RECOMPUTES)
    pins = Pins(pp=1 if schedule is None else None, schedule=schedule, recompute=recompute, zero_stage=zero)
    found = [
        config
        for config in candidates_of(replace(request, pins=pins))
        if (config.pp > 1) is (schedule is not None) and _may_be_drawn(problem, config)
    ]
    if not found:
        return None
    config = draw.choice(found)
    pins = replace(
        pins,
        dp=config.dp,
        tp=config.tp,
        cp=config.cp,
        pp=config.pp,
        micro_batch=config.micro_batch,
        virtual_stages=config.virtual_stages,
    )
    return PinnedProblem(problem.name, replace(request, pins=pins), config)


def _may_be_drawn(problem: JointProblem, config: PlanConfig) -> bool:
    """Whether a tensor axis is within a node, micro-batches are not too many, and the state fits."""
    if config.tp > problem.cluster.devices_per_node or config.num_micro_batches > MOST_MICRO_BATCHES:
        return False
    shared = STATE_BYTES / (config.dp if config.zero_stage else 1)
    held = (PARAMETER_BYTES + shared) * problem.model.parameters / (config.tp * config.pp)
    return held <= FILLED * problem.cluster.device.memory_bytes
