"""Drawn steps: what a plan's step takes when the constants that price it are off by factors.

An act's price is linear in its constants, and what a stage does is a sum of acts: so each of the times that the
objective is made of is a sum over constants, found once per plan. Under other factors the schedule's own recurrence
gives the objective anew (`layout.step_times`). The simulated step is taken to change as the objective does:

    drawn step = simulated step x drawn objective / objective

so that with all factors 1 a plan takes what the search compared. What factors do not change is kept: the layout, the
order of acts, and whether a collective goes on one level or two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.explanation.uncertain_constants import UncertainConstants
from strategy.base.identity import Identity
from strategy.layout.config import PlanConfig
from strategy.layout.objective import overlap_of
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import COVERED, Overlap, StepTimes, no_times, steps_ns
from strategy.plan.plan import Plan

Floats = npt.NDArray[np.float64]
MOST_AT_ONCE = 2**22
"""Times of drawn cases that are held at once."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOfConstants:
    """A plan's step as a function of the factors of its constants.

    `fixed_ns` and, by constant, `by_constant_ns` have the arrays of `StepTimes`: what no constant scales, and what one
    does.
    """

    config: PlanConfig
    step_time_s: float
    schedule: Schedule
    num_micro_batches: int
    overlap: Overlap
    fixed_ns: Mapping[str, Floats]
    by_constant_ns: Mapping[str, Mapping[str, Floats]]

    def drawn_s(self, factors: Mapping[str, Floats]) -> Floats:
        """(draws,): the step under the factors of every draw; a constant that is not there has 1."""
        draws = next((each.size for each in factors.values()), 1)
        nominal_ns = float(self._objectives_ns({}, 0, 1)[0])
        at_once = max(1, MOST_AT_ONCE // sum(each.size for each in self.fixed_ns.values()))
        begins = range(0, draws, at_once)
        parts = [self._objectives_ns(factors, begin, min(begin + at_once, draws)) for begin in begins]
        return np.asarray(self.step_time_s / nominal_ns * np.concatenate(parts), np.float64)

    def _objectives_ns(self, factors: Mapping[str, Floats], begin: int, end: int) -> npt.NDArray[np.int64]:
        times = {}
        for name, fixed in self.fixed_ns.items():
            total = np.repeat(fixed[None], end - begin, axis=0)
            for constant, arrays in self.by_constant_ns.items():
                factor = factors[constant][begin:end] if constant in factors else np.ones(end - begin)
                total += factor.reshape(-1, *[1] * fixed.ndim) * arrays[name]
            times[name] = np.rint(total).astype(np.int64)
        return steps_ns(self.schedule, self.num_micro_batches, StepTimes(**times, overlap=self.overlap))


def step_of_constants(plan: Plan, constants: UncertainConstants) -> StepOfConstants:
    """What a plan's step consists of, by constant."""
    priced, pipeline = plan.priced, plan.pipeline
    stages = len(plan.layout.stages.placements)
    overhead_ns = 1e9 * plan.cost.act_overhead_s
    fixed = _none(stages, pipeline.laps)
    by_constant: dict[str, dict[str, Floats]] = {}
    known: dict[Identity, list[tuple[str, float]]] = {}
    for at, ((name, place), seen) in enumerate(zip(priced.accounts, priced.features, strict=True)):
        key = Identity(seen)
        if key not in known:
            parts = seen.parts or (seen,)
            known[key] = [(constants.name_of(part), 1e9 * plan.cost.seconds(part) - overhead_ns) for part in parts]
            for constant, _ in known[key]:
                by_constant.setdefault(constant, _none(stages, pipeline.laps))
        shares = {name: 1.0}
        if at in priced.covered_ns:
            shares[COVERED[name]] = priced.covered_ns[at] / priced.took_ns[at]
            shares[name] -= shares[COVERED[name]]
        for counted, share in shares.items():
            fixed[counted][place] += share * overhead_ns
            for constant, nanoseconds in known[key]:
                by_constant[constant][counted][place] += share * nanoseconds
    return StepOfConstants(
        plan.config,
        plan.claims.step_time_s,
        pipeline.schedule,
        pipeline.num_micro_batches,
        overlap_of(pipeline, plan.cost),
        fixed,
        dict(sorted(by_constant.items())),
    )


def _none(stages: int, laps: int) -> dict[str, Floats]:
    return {name: array.astype(np.float64) for name, array in no_times(stages, laps).items()}
