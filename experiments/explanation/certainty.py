"""Certainty: how probable it is that a plan is the best of a few, and the one measurement that would tell most of it.

The constants that price the plans are drawn from their intervals (`uncertain_constants`), the same draws for all plans,
and every plan's step is found under each draw (`drawn_steps`). A plan is the best one with the share of the draws under
which nothing takes less; plans that take the same share a draw.

Were a constant known, one would choose the plan that is best most often under what it is known to be. How often that
one is the best, in expectation over what the measurement may show (the expected value of partial perfect information;
Raiffa and Schlaifer 1961, Applied Statistical Decision Theory), is estimated from the same draws: they are sorted by
the constant into bins; in each a plan is chosen by one half of the draws, and counted in the other, so that a choice
by noise gains nothing. The measurement that is named is that of the constant which raises this most.

The seed is fixed, and draws of a constant depend on its name alone: neither the order in which plans were found nor
what else is uncertain changes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.explanation.drawn_steps import StepOfConstants, step_of_constants
from experiments.explanation.uncertain_constants import UncertainConstants
from strategy.base.beside import beside
from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InputError, SbplanError
from strategy.cost.calibrate import Calibration, read_calibration
from strategy.layout.config import PlanConfig
from strategy.plan.plan import Plan, config_document
from strategy.search.search_result import SearchResult

Floats = npt.NDArray[np.float64]
SEED, DRAWS, BINS = 0, 2048, 16
Z = 1.6448536269514722
"""Half-width of a 90 % interval of a normal variable, in standard deviations."""
SHARE = 0.05
"""Of a search's time limit, for this beside it."""
TIE = 1e-12
"""Part of a step by which plans that take the same may differ in floating point."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A plan among others, and the share of the draws under which it is the best."""

    config: PlanConfig
    step_time_s: float
    probability: float


@dataclass(frozen=True, slots=True)
class Telling:
    """The constant that tells most: its interval's half-width (of the logarithm), how to measure it, what that gains.

    `probability` is how often, in expectation, the plan that one chooses when it is known is the best.
    """

    constant: str
    half_width: float
    probability: float
    measured_by: str


@dataclass(frozen=True, slots=True)
class Certainty:
    """The chosen plan, first, and the others that it was compared with.

    `telling` is None where no single constant that is known better changes which plan to choose.
    """

    standings: tuple[Standing, ...]
    telling: Telling | None
    calibrated: bool
    draws: int = DRAWS
    seed: int = SEED

    @property
    def probability(self) -> float:
        """That the chosen plan is the best of these."""
        return self.standings[0].probability

    @property
    def half_width(self) -> float:
        """Of a 90 % interval of that, by the number of draws."""
        return half_width(self.probability, self.draws)

    def document(self) -> dict[str, Any]:
        """As JSON knows it."""
        telling = self.telling
        return {
            "probability": self.probability,
            "half_width": self.half_width,
            "intervals": "calibration" if self.calibrated else "data sheet",
            "draws": self.draws,
            "seed": self.seed,
            "plans": [
                {
                    "config": config_document(one.config),
                    "step_time_s": one.step_time_s,
                    "probability": one.probability,
                }
                for one in self.standings
            ],
            "measurement": telling and {name: getattr(telling, name) for name in Telling.__slots__},
        }

    def __str__(self) -> str:
        whose = "the calibration's" if self.calibrated else "the data sheet's"
        said = (
            f"the fastest of {len(self.standings)} plans that were simulated, with probability {self.probability:.2f} "
            f"(+- {self.half_width:.2f}) under {whose} intervals"
        )
        if self.telling is None:
            return f"{said}; no single measurement would change that by much"
        told = self.telling
        return (
            f"{said}; to know {told.constant} (within a factor of {math.exp(told.half_width):.2f} now) would raise "
            f"that of the plan one chooses to {told.probability:.2f}: {told.measured_by}"
        )


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why it is not known how sure a plan is to be the best."""

    reason: str


ALONE = Unknown("one plan was simulated: there is none to compare it with")
INTERRUPTED = Unknown("the search was interrupted")
WITHOUT_INTERVALS = Unknown(
    "a plan was priced by measured constants of which no intervals are given: --calibration F, the file that it was "
    "priced by, has them"
)


def best_document(best: Certainty | Unknown) -> dict[str, object]:
    """Keys that JSON documents of plans have of how sure they are: `best`, and where that is null `best_left_out`."""
    if isinstance(best, Unknown):
        return {"best": None, "best_left_out": best.reason}
    return {"best": best.document(), "best_left_out": None}


def best_text(best: Certainty | Unknown) -> str:
    """The same for people, behind what was said of a plan."""
    return f"how sure it is to be the fastest is not known: {best.reason}" if isinstance(best, Unknown) else str(best)


def half_width(probability: float, draws: int) -> float:
    """Of a 90 % interval of a share of so many draws."""
    return Z * math.sqrt(probability * (1 - probability) / draws)


def certainty_among(plans: Sequence[Plan], calibration: Calibration | None, budget: Budget) -> Certainty | Unknown:
    """How sure it is that the first of some plans is the best; of as many as there is time for, two at least.

    Not known where there is nothing to compare it with, or of a plan's measured constants there are no intervals.
    """
    if len(plans) < 2:
        return ALONE
    constants = UncertainConstants.of(calibration)
    if any(not plan.cost.coefficients.keys() <= constants.fitted.keys() for plan in plans):
        return WITHOUT_INTERVALS
    limits = [UNLIMITED, UNLIMITED] + [budget] * (len(plans) - 2)
    tasks = [partial(_step_in_time, plan, constants, limit) for plan, limit in zip(plans, limits, strict=True)]
    found = beside(tasks)
    for one in found:
        if isinstance(one, SbplanError):
            raise one
    return certainty([one for one in found if isinstance(one, StepOfConstants)], constants)


def _step_in_time(plan: Plan, constants: UncertainConstants, budget: Budget) -> StepOfConstants | None:
    """What a plan's step consists of; None where there is no time to find out."""
    return None if budget.is_over() else step_of_constants(plan, constants)


def intervals_of(plan: Plan, path: Path | None) -> Calibration | None:
    """The calibration that a plan was priced by, from its file; None where none is given.

    Raises:
        InputError: no calibration, or not the one that the plan was priced by.
    """
    if path is None:
        return None
    calibration = read_calibration(path)
    if calibration.cost_model(plan.cluster) != plan.cost:
        hint = f"search with --calibration {path}, or give the file that the plan was searched with"
        raise InputError("the plan was priced by other constants", where=f"--calibration {path}", hint=hint)
    return calibration


def certainty_of_search(result: SearchResult, calibration: Calibration | None, limit_s: float) -> Certainty | Unknown:
    """How sure it is that the answer of a search is the best of the plans that it simulated.

    It takes `SHARE` of the search's time limit; where the search was interrupted, it is left out.
    """
    if result.interrupted:
        return INTERRUPTED
    return certainty_among([result.plan, *result.others], calibration, Budget.of(SHARE * limit_s))


def certainty(steps: Sequence[StepOfConstants], constants: UncertainConstants) -> Certainty:
    """How sure it is that the first of some steps is the shortest."""
    names = sorted({name for step in steps for name in step.by_constant_ns if constants.half_width(name)})
    factors = {name: drawn_factors(name, constants.half_width(name)) for name in names}
    best = best_by_draw(steps, factors)
    standings = tuple(
        Standing(step.config, step.step_time_s, float(share.mean())) for step, share in zip(steps, best, strict=True)
    )
    return Certainty(standings, _telling(best, factors, constants), bool(constants.fitted))


def drawn_factors(name: str, half_width: float) -> Floats:
    """(draws,): what a constant is off by; its logarithm is normal."""
    normal: Floats = np.random.default_rng([SEED, *name.encode()]).standard_normal(DRAWS)
    return np.exp(half_width / Z * normal)


def best_by_draw(steps: Sequence[StepOfConstants], factors: Mapping[str, Floats]) -> Floats:
    """(plans, draws): 1 where a plan takes least, of those that take the same an even share."""
    taken = np.array([np.broadcast_to(step.drawn_s(factors), DRAWS) for step in steps])
    least = taken <= taken.min(axis=0) * (1 + TIE)
    found: Floats = least / least.sum(axis=0)
    return found


def chosen_if_known(best: Floats, factor: Floats) -> Floats:
    """(draws,): how far the plan that one would choose, were the factor known, is the best one."""
    found = np.empty(best.shape[1])
    for mine in np.array_split(np.argsort(factor, kind="stable"), BINS):
        for chosen_by, counted in ((mine[::2], mine[1::2]), (mine[1::2], mine[::2])):
            found[counted] = best[np.argmax(best[:, chosen_by].sum(axis=1)), counted]
    return found


def _telling(best: Floats, factors: Mapping[str, Floats], constants: UncertainConstants) -> Telling | None:
    """The constant whose knowledge gains most; none that gains no more than noise."""
    ordered = best[np.lexsort(best.T[::-1])]  # by what they are, not by when they were found
    now = ordered[np.argmax(ordered.sum(axis=1))]
    gains = {}
    for name, factor in factors.items():
        gained = chosen_if_known(ordered, factor) - now
        if gained.mean() > Z * gained.std() / math.sqrt(DRAWS):
            gains[name] = float(gained.mean())
    if not gains:
        return None
    name = max(sorted(gains), key=gains.__getitem__)
    probability = float(now.mean()) + gains[name]
    return Telling(name, constants.half_width(name), probability, constants.measured_by(name))
