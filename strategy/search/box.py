"""Box: the configurations of one mesh, micro-batch and way to save memory, with what bounds each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from strategy.bounds.closed_forms import exchanging, on_axes
from strategy.bounds.point import FloatArray
from strategy.bounds.template_cut import TemplateCut
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.template.answers import Proposed
from strategy.search.template.outer_approximation import Bound, DualPrices, OuterApproximation

OWN_CUTS, EXHAUSTED = 4, 24
"""Level of a box that has cuts of its own templates, and of one that no further cut is looked for."""


FAR_FROM_FITTING, FAR_STEP = 1.25, 2
"""What holds more than so much of the memory is far from fitting: the next proposal skips a step."""
SURELY = 1e-4
"""By this part more is asked of a cut than what is to be surpassed: linear programs are not exact."""
LIGHTER, HARDEST = 0.005, 6.0
"""By this part less is held by what is any lighter; and so hard bytes weigh where little else does."""


@dataclass(slots=True, eq=False)
class Box:
    """A mesh group with its bounds, and how they were found.

    Attributes:
        configs: of the group; they differ in schedule alone.
        bounds_ns: of each; infinite where nothing fits.
        nothing_legal: the cut that says that no layout of it is legal, if there is one.
        level: that of the module's table, in `refinement`.
        least_work_ns: the least of its bounds by work alone.
        counts_exchanges: whether its bounds know what layers exchange at least, by closed forms.
        within: the linear program's cuts, from level 2 on, or once its layers wait to be told.
        is_outdated: whether more is known of its layers than the linear program knows.
        prices: the dual prices of the last bound of each.
        forbidding: configuration -> the dual prices at which nothing of it fits, where they were asked for.
        solved: configuration -> how many cuts there were when it was last bounded, and whether by all paths.
        seen: by a way to treat the layers between, and what boxes have in common, how many cuts of templates it has
            looked at.
        points: by template, what its own answers were found at.
        layouts: that these answers are.
        stalled: how many of the latest cuts have gained nothing.
        resumed: how often it has been refined again since.
        is_proposed: whether there are proposals from it.
        tries: how often there was something to propose.
        harder: how hard bytes weigh in the next proposal, see `Prospects.likely_to_fit`.
        too_light: how hard they did where the fastest did not fit, the most of all, and the nanoseconds of that.
        hard_enough: how hard they did where it did, the least of all.
        lightest: the part of the memory that its lightest proposal is likely to hold, if there is one.
        crowding: by schedule, bytes that its proposals held beside those that bounds count.
        promise: what it is thought to take, beside what that was found with.
        axes: what a template without data axis depends on, recomputing aside.
        exchanging: what decides on that which goes on beside layers.
    """

    configs: tuple[PlanConfig, ...]
    bounds_ns: list[float]
    nothing_legal: TemplateCut | None = None
    level: int = 0
    least_work_ns: float = field(init=False)
    counts_exchanges: bool = False
    within: OuterApproximation | None = None
    is_outdated: bool = False
    prices: dict[PlanConfig, Bound] = field(default_factory=dict)
    forbidding: dict[PlanConfig, DualPrices | None] = field(default_factory=dict)
    solved: dict[PlanConfig, tuple[int, bool]] = field(default_factory=dict)
    seen: dict[tuple[int, object], int] = field(default_factory=dict)
    points: dict[object, list[FloatArray]] = field(default_factory=dict)
    layouts: list[Proposed] = field(default_factory=list)
    stalled: int = 0
    resumed: int = 0
    is_proposed: bool = False
    tries: int = 0
    harder: float = 0.0
    too_light: tuple[float, float] | None = None
    hard_enough: float = math.inf
    lightest: float = math.inf
    crowding: dict[Schedule, float] = field(default_factory=dict)
    promise: tuple[object, float] = (None, 0.0)
    axes: tuple[object, ...] = field(init=False)
    exchanging: object = field(init=False)

    def __post_init__(self) -> None:
        self.axes, self.exchanging = on_axes(self.configs[0]), exchanging(self.configs[0])
        self.least_work_ns = min(self.bounds_ns)

    @property
    def bound_ns(self) -> float:
        """Of all configurations; infinite where none fits."""
        return min(self.bounds_ns)

    @property
    def config(self) -> PlanConfig:
        """The one with the least bound."""
        return self.configs[self.bounds_ns.index(self.bound_ns)]

    @property
    def told_by(self) -> object:
        """What a question about it tells of all such boxes: of those with its axes, before these are known."""
        return self if self.level else self.axes

    @property
    def is_done(self) -> bool:
        """Whether no more can be had from it."""
        return self.level >= EXHAUSTED and self.is_proposed

    @property
    def is_solved(self) -> bool:
        """Whether the least bound is by all cuts that there are and, from level 3 on, by all paths."""
        return self.within is not None and self.solved.get(self.config) == (self.within.count, self.level >= 3)

    def weigh(self, least_ns: float, fitting_ns: float, held: float, settled: float) -> bool:
        """Weigh bytes otherwise after a proposal; says whether nothing better is expected of that.

        They weigh more as long as what is fast does not fit, the more so where it is far from fitting, and then less
        again, half way back.

        Args:
            least_ns: of the fastest configuration under the layouts proposed.
            fitting_ns: of the fastest that is likely to fit.
            held: the part of the memory that the lightest configuration is likely to hold.
            settled: by this part what fits may take longer than what does not.
        """
        if fitting_ns <= (1 + settled) * least_ns:
            self.hard_enough = min(self.hard_enough, self.harder)
            if self.too_light is None or fitting_ns <= (1 + settled) * self.too_light[1]:
                return True
            self.harder = (self.too_light[0] + self.hard_enough) / 2
        else:
            self.too_light = self.harder, least_ns
            step = FAR_STEP if held > FAR_FROM_FITTING else 1
            self.harder = min(self.harder + step, (self.harder + self.hard_enough) / 2)
        return False

    def is_lightest(self, held: float) -> bool:
        """Whether a proposal, made though lighter ones were wanted, says that there are hardly any.

        One that is no lighter than those before lets bytes weigh so much more that the next one is as light as can be.
        """
        is_lighter = held < (1 - LIGHTER) * self.lightest
        self.lightest = min(self.lightest, held)
        if is_lighter:
            return False
        is_last = self.harder >= HARDEST
        self.harder = max(self.harder, HARDEST)
        return is_last

    def resume(self) -> None:
        """Look for cuts again, of which the last few gained nothing."""
        self.level, self.stalled, self.resumed = OWN_CUTS, 0, self.resumed + 1

    def weigh_anew(self) -> None:
        """Propose again, from the start."""
        self.is_proposed, self.tries, self.harder, self.too_light, self.hard_enough = False, 0, 0.0, None, math.inf
        self.lightest = math.inf

    def close(self, why: TemplateCut | None = None) -> None:
        """Nothing is legal."""
        self.bounds_ns, self.nothing_legal = [math.inf] * len(self.configs), why

    def prices_of(self, config: PlanConfig) -> DualPrices | None:
        """What says of a configuration that it takes no less than its bound; None where that is by closed forms."""
        bound = self.prices.get(config)
        if bound is None or self.within is None:
            return None
        if bound.step_ns is not None:
            return bound.prices
        if config not in self.forbidding:
            self.forbidding[config] = self.within.why_nothing_fits(config)
        return self.forbidding[config]

    def enough_ns(self, weights: FloatArray, most_ns: float) -> float | None:
        """What a cut with these weights, (SIZE,), has to say for nothing to take less; None where it is not known."""
        within, found = self.within, list[float | None]()
        if within is None or math.isinf(most_ns):
            return None
        for config, bound_ns in zip(self.configs, self.bounds_ns, strict=True):
            if bound_ns < most_ns:
                found.append(within.enough(config, weights, (1 + SURELY) * most_ns))
        known = [one for one in found if one is not None]
        return max(known) if len(known) == len(found) else None

    def raise_bounds(self, most_ns: float) -> None:
        """Bound by all cuts what may still be the least, up to what is of interest."""
        within = self.within
        while within is not None and self.bound_ns < most_ns:
            if self.is_solved:
                return
            config = self.config
            bound = within.bound(config, exact=self.level >= 3, enough_ns=(1 + SURELY) * most_ns)
            self.solved[config] = within.count, self.level >= 3
            i = self.configs.index(config)
            gave_up = bound.step_ns is not None and bound.prices is None  # now and then the solver does
            if not gave_up or config not in self.prices:
                self.prices[config] = bound
            self.bounds_ns[i] = math.inf if bound.step_ns is None else max(self.bounds_ns[i], float(bound.step_ns))
