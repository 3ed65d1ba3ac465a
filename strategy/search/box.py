"""Box: the configurations of one mesh, micro-batch and way to save memory, with what bounds each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from strategy.bounds.closed_forms import on_axes
from strategy.bounds.point import FloatArray
from strategy.bounds.template_cut import TemplateCut
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.template.outer_approximation import Bound, DualPrices, OuterApproximation

EXHAUSTED = 12
"""Level of a box that no further cut is looked for."""


@dataclass(slots=True, eq=False)
class Box:
    """A mesh group with its bounds, and how they were found.

    Attributes:
        configs: of the group; they differ in schedule alone.
        bounds_ns: of each; infinite where nothing fits.
        nothing_legal: the cut that says that no layout of it is legal, if there is one.
        level: that of the module's table, in `refinement`.
        within: the linear program's cuts, from level 2 on.
        prices: the dual prices of the last bound of each.
        solved: configuration -> how many cuts there were when it was last bounded, and whether by all paths.
        seen: by what they have in common, how many cuts of templates it has looked at.
        points: that its own answers were found at.
        stalled: how many of the latest cuts have gained nothing.
        is_proposed: whether there are proposals from it.
        tries: how often there was something to propose.
        crowding: by schedule, bytes that its proposals held beside those that bounds count.
        promise: what it is thought to take, beside what that was found with.
        axes: what a template without data axis depends on, recomputing aside.
    """

    configs: tuple[PlanConfig, ...]
    bounds_ns: list[float]
    nothing_legal: TemplateCut | None = None
    level: int = 0
    within: OuterApproximation | None = None
    prices: dict[PlanConfig, Bound] = field(default_factory=dict)
    solved: dict[PlanConfig, tuple[int, bool]] = field(default_factory=dict)
    seen: dict[object, int] = field(default_factory=dict)
    points: list[FloatArray] = field(default_factory=list)
    stalled: int = 0
    is_proposed: bool = False
    tries: int = 0
    crowding: dict[Schedule, float] = field(default_factory=dict)
    promise: tuple[object, float] = (None, 0.0)
    axes: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.axes = on_axes(self.configs[0])

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

    def close(self, why: TemplateCut | None = None) -> None:
        """Nothing is legal."""
        self.bounds_ns, self.nothing_legal = [math.inf] * len(self.configs), why

    def prices_of(self, config: PlanConfig) -> DualPrices | None:
        """What says of a configuration that it takes no less than its bound; None where that is by closed forms."""
        bound = self.prices.get(config)
        if bound is None or self.within is None:
            return None
        return self.within.why_nothing_fits(config) if bound.step_ns is None else bound.prices

    def raise_bounds(self, most_ns: float) -> None:
        """Bound by all cuts what may still be the least, up to what is of interest."""
        within = self.within
        while within is not None and self.bound_ns < most_ns:
            if self.is_solved:
                return
            config = self.config
            bound = within.bound(config, exact=self.level >= 3)
            self.solved[config] = len(within.cuts), self.level >= 3
            i = self.configs.index(config)
            gave_up = bound.step_ns is not None and bound.prices is None  # now and then the solver does
            if not gave_up or config not in self.prices:
                self.prices[config] = bound
            self.bounds_ns[i] = math.inf if bound.step_ns is None else max(self.bounds_ns[i], float(bound.step_ns))
