"""Box: the configurations of one mesh, micro-batch and way to save memory, with what bounds each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from strategy.bounds.point import FloatArray
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.template.answers import on_axes
from strategy.search.template.outer_approximation import Bound, OuterApproximation

EXHAUSTED = 12
"""Level of a box that no further cut is looked for."""


@dataclass(slots=True, eq=False)
class Box:
    """A mesh group with its bounds, and how they were found.

    Attributes:
        configs: of the group; they differ in schedule alone.
        bounds_ns: of each; infinite where nothing fits.
        level: that of the module's table, in `refinement`.
        within: the linear program's cuts, from level 2 on.
        prices: the dual prices of the last bound of each.
        solved: configuration -> how many cuts there were when it was last bounded, and whether by all paths.
        shared: how many it has of those that boxes share, by whom they are shared.
        adding_ns: what it takes at least to add up a layer's gradients in a micro-batch, beside what is done to parts.
        points: that its own answers were found at.
        stalled: how many of the latest cuts have gained nothing.
        is_proposed: whether there are proposals from it.
        tries: how often there was something to propose.
        crowding: by schedule, bytes that its proposals held beside those that bounds count.
        promise: what it is thought to take, beside what that was found with.
    """

    configs: tuple[PlanConfig, ...]
    bounds_ns: list[float]
    level: int = 0
    within: OuterApproximation | None = None
    prices: dict[PlanConfig, Bound] = field(default_factory=dict)
    solved: dict[PlanConfig, tuple[int, bool]] = field(default_factory=dict)
    shared: dict[object, int] = field(default_factory=dict)
    adding_ns: float = 0.0
    points: list[FloatArray] = field(default_factory=list)
    stalled: int = 0
    is_proposed: bool = False
    tries: int = 0
    crowding: dict[Schedule, float] = field(default_factory=dict)
    promise: tuple[object, float] = (None, 0.0)

    @property
    def bound_ns(self) -> float:
        """Of all configurations; infinite where none fits."""
        return min(self.bounds_ns)

    @property
    def config(self) -> PlanConfig:
        """The one with the least bound."""
        return self.configs[self.bounds_ns.index(self.bound_ns)]

    @property
    def is_done(self) -> bool:
        """Whether no more can be had from it."""
        return self.level >= EXHAUSTED and self.is_proposed

    @property
    def is_solved(self) -> bool:
        """Whether the least bound is by all cuts that there are and, from level 3 on, by all paths."""
        return self.within is not None and self.solved.get(self.config) == (len(self.within.cuts), self.level >= 3)

    def close(self) -> None:
        """Nothing fits."""
        self.bounds_ns = [math.inf] * len(self.configs)

    def raise_bounds(self, most_ns: float) -> None:
        """Bound by all cuts what may still be the least, up to what is of interest."""
        within = self.within
        while within is not None and self.bound_ns < most_ns:
            if self.is_solved:
                return
            config = self.config
            bound = self.prices[config] = within.bound(config, exact=self.level >= 3)
            self.solved[config] = len(within.cuts), self.level >= 3
            i = self.configs.index(config)
            self.bounds_ns[i] = math.inf if bound.step_ns is None else max(self.bounds_ns[i], float(bound.step_ns))


def of_tensor_axis(config: PlanConfig) -> object:
    """What a template of the tensor axis depends on."""
    return *on_axes(config), config.recompute


def of_work(config: PlanConfig) -> object:
    """What a template of everything that takes time depends on, and what computes some of it again takes no less than.

    What computes again is laid out like what it computes: without it, all else could be as it is. What gathers
    parameters in every micro-batch takes no less than what gathers them once.
    """
    return config.dp, *on_axes(config), config.num_micro_batches, config.zero_stage
