"""Pipelines whose stages are made of any layers: how long a step of 1F1B takes, and what its ranks hold.

The time is that of the schedule's own recurrence, the memory that of the estimate of our search: `makespan_ns` and
`peak_bytes`, as for configurations whose stages are alike (`strategy.search.template.stages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from experiments.bench.baselines.pricing import LayerPricing, Strategy, StrategyPrices
from strategy.bounds.point import PASSES
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import OVERLAPPED, WAITED, StepTimes, no_times, step_ns
from strategy.search.template.parts import LayerPart
from strategy.search.template.stages import peak_bytes


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A method's answer: the nanoseconds of a step, bytes on the fullest rank, and what it is in words.

    `note` says where a method ended before its time.
    """

    step_ns: int
    peak_bytes: int
    what: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A run of layers with one strategy; a model's first and last layers are other parts than those between.

    Attributes:
        strategy, prices: how they are laid out, and what that takes.
        count: of layers.
        has_first, has_last: whether the model's first and last layer are among them.
    """

    strategy: Strategy
    prices: StrategyPrices
    count: int
    has_first: bool = False
    has_last: bool = False

    @property
    def parts(self) -> tuple[tuple[LayerPart, int], ...]:
        """The parts of them, and how often each."""
        parts, ends = self.prices.parts, self.has_first + self.has_last
        return (
            (parts.first, int(self.has_first)),
            (parts.middle, self.count - ends),
            (parts.last, int(self.has_last)),
        )


Stage = Sequence[LayerRun]


def priced(pricing: LayerPricing, stages: Sequence[Stage], samples: int, count: int) -> tuple[int, int]:
    """(nanoseconds of a step, bytes on the fullest rank) of `count` micro-batches of so many samples under 1F1B."""
    config = PlanConfig(1, 1, len(stages), 1, count, Schedule.ONE_F_ONE_B)
    times = no_times(len(stages), 1)
    peak = 0
    for at, stage in enumerate(stages):
        pairs = [pair for layers in stage for pair in layers.parts]
        for part, number in pairs:
            for name in PASSES:
                times[name][at] += number * getattr(part, name)
        for before, after in pairwise(stage):
            if before.strategy.ranks == after.strategy.ranks and _mesh(before) != _mesh(after):
                source, target = before.strategy, after.strategy
                times["forward_ns"][at, 0] += pricing.crossing_ns(source, target, samples, count, apart=False)
                times["backward_ns"][at, 0] += pricing.crossing_ns(target, source, samples, count, apart=False)
        laps = np.array([[number for _, number in pairs]], np.int64)
        peak = max(peak, peak_bytes([part for part, _ in pairs], config, at, laps))
    times["forward_message_ns"], times["backward_message_ns"] = messages_ns(pricing, stages, samples, count)
    overlap = pricing.overlap((layers.strategy for stage in stages for layers in stage), len(stages))
    return step_ns(Schedule.ONE_F_ONE_B, count, StepTimes(**times, overlap=overlap)), peak


def messages_ns(
    pricing: LayerPricing, stages: Sequence[Stage], samples: int, count: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """What is handed on from stage to stage, forward and backward."""
    ahead, back = (np.zeros(len(stages) - 1, np.int64) for _ in range(2))
    for at, (here, there) in enumerate(pairwise(stages)):
        source, target = here[-1], there[0]
        if _mesh(source) == _mesh(target):
            ahead[at], back[at] = source.prices.between_ns
        else:
            ahead[at] = pricing.crossing_ns(source.strategy, target.strategy, samples, count, apart=True)
            back[at] = pricing.crossing_ns(target.strategy, source.strategy, samples, count, apart=True)
    return ahead, back


def _mesh(layers: LayerRun) -> tuple[int, int, bool]:
    return layers.strategy.dp, layers.strategy.tp, layers.strategy.searched


def held_bytes(part: LayerPart, in_flight: int) -> int:
    """What a layer holds of a rank with so many micro-batches in flight, but for what is held in passing."""
    of_step = part.step_bytes + part.behind_bytes + part.ahead_bytes + part.sum_bytes
    return part.static_bytes + of_step + in_flight * (part.saved_bytes + part.waiting_bytes)


def busy_ns(part: LayerPart) -> int:
    """What a micro-batch takes, both ways."""
    return sum(getattr(part, name) for own in WAITED for name in (own, WAITED[own], OVERLAPPED[own]))


def once_ns(part: LayerPart) -> int:
    """What a step takes once."""
    return part.before_ns + part.after_ns + part.before_overlapped_ns + part.after_overlapped_ns
