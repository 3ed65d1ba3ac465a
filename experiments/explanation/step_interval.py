"""Step interval: between which times a plan's step lies, by the intervals of the constants that price it.

The constants are drawn as `certainty` draws them; nine in ten of the steps under these draws (`drawn_steps`) lie
between the two times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.explanation.certainty import drawn_factors
from experiments.explanation.drawn_steps import step_of_constants
from experiments.explanation.uncertain_constants import UncertainConstants
from strategy.cost.calibrate import Calibration
from strategy.plan.plan import Plan

QUANTILES = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class StepInterval:
    """The two times, in seconds, and whether the constants' intervals are a calibration's or the data sheet's."""

    lo_s: float
    hi_s: float
    calibrated: bool


def step_interval(plan: Plan, calibration: Calibration | None) -> StepInterval | None:
    """The interval of a plan's step; None where it is priced by measured constants of which no intervals are given."""
    constants = UncertainConstants.of(calibration)
    if not plan.cost.coefficients.keys() <= constants.fitted.keys():
        return None
    step = step_of_constants(plan, constants)
    names = [name for name in step.by_constant_ns if constants.half_width(name)]
    drawn = step.drawn_s({name: drawn_factors(name, constants.half_width(name)) for name in names})
    lo, hi = np.quantile(drawn, QUANTILES)
    return StepInterval(float(lo), float(hi), bool(constants.fitted))
