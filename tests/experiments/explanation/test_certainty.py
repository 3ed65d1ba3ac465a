"""How sure the best plan is: against what is known in closed form, and against the objective under other constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from experiments.explanation.certainty import (
    ALONE,
    DRAWS,
    WITHOUT_INTERVALS,
    Certainty,
    best_by_draw,
    certainty,
    certainty_among,
    chosen_if_known,
    drawn_factors,
    half_width,
)
from experiments.explanation.drawn_steps import StepOfConstants, step_of_constants
from experiments.explanation.uncertain_constants import UncertainConstants, unseen_half_width
from strategy.base.budget import UNLIMITED, Budget
from strategy.cost.calibrate import Calibration, Fitted
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey, Features
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import Overlap, no_times
from strategy.plan.plan import Plan
from tests.experiments.explanation.small import CONFIGS, small_plan

WIDE, NARROW = CostKey("all_reduce", level="inter"), CostKey("matmul", "bfloat16")
HALF_WIDTHS = {WIDE: 0.3, NARROW: 0.1}
CONSTANTS = UncertainConstants(HALF_WIDTHS)


def made_of(milliseconds: dict[str, float], number: int = 1) -> StepOfConstants:
    """A step on one rank that is a sum of so much per constant."""
    nothing = {name: array.astype(float) for name, array in no_times(1, 1).items()}
    by_constant = {
        name: {**nothing, "forward_ns": np.full((1, 1), 1e6 * taken)} for name, taken in milliseconds.items()
    }
    step_s = sum(milliseconds.values()) / 1e3
    config = PlanConfig(number, 1, 1, 1, 1, Schedule.ONE_F_ONE_B)
    return StepOfConstants(config, step_s, Schedule.ONE_F_ONE_B, 1, Overlap(allowed=False), nothing, by_constant)


def test_a_plan_that_takes_less_of_everything_is_the_best_one() -> None:
    steps = [made_of({str(WIDE): 2.0, str(NARROW): 3.0}), made_of({str(WIDE): 2.1, str(NARROW): 3.0}, 2)]
    found = certainty(steps, CONSTANTS)
    assert [one.probability for one in found.standings] == [1.0, 0.0]
    assert found.half_width == 0
    assert found.telling is None
    assert "no single measurement" in str(found)


def test_of_twins_each_is_the_best_in_half_of_all_cases() -> None:
    """As alike as can be, and by constants that are as uncertain as each other."""
    same = certainty([made_of({str(WIDE): 2.0}), made_of({str(WIDE): 2.0}, 2)], CONSTANTS)
    assert [one.probability for one in same.standings] == [0.5, 0.5]
    assert same.telling is None
    alike = UncertainConstants({WIDE: 0.2, NARROW: 0.2})
    found = certainty([made_of({str(WIDE): 2.0}), made_of({str(NARROW): 2.0}, 2)], alike)
    assert found.half_width == pytest.approx(half_width(0.5, DRAWS), rel=0.01)
    assert found.probability == pytest.approx(0.5, abs=found.half_width)


def expected(mine: CostKey, other: CostKey) -> float:
    """How often one is right about which of two normal variables is less, of which one is known."""
    return 0.5 + math.atan(HALF_WIDTHS[mine] / HALF_WIDTHS[other]) / math.pi


def test_the_measurement_is_that_of_the_constant_that_tells_most() -> None:
    steps = [made_of({str(WIDE): 2.0}), made_of({str(NARROW): 2.0}, 2)]
    factors = {str(key): drawn_factors(str(key), half) for key, half in HALF_WIDTHS.items()}
    best = best_by_draw(steps, factors)
    by_constant = {key: chosen_if_known(best, factors[str(key)]).mean() for key in (WIDE, NARROW)}
    for key, other in ((WIDE, NARROW), (NARROW, WIDE)):
        assert by_constant[key] == pytest.approx(expected(key, other), abs=0.03)
    found = certainty(steps, CONSTANTS)
    assert found.telling is not None
    assert (found.telling.constant, found.telling.half_width) == (str(WIDE), 0.3)
    assert found.telling.probability == pytest.approx(by_constant[WIDE], abs=0.02)
    assert "nccl-tests" in found.telling.measured_by
    assert found.document()["measurement"]["constant"] == "all_reduce@inter"


def test_a_constant_that_all_plans_have_as_much_of_tells_nothing() -> None:
    """It is by far the most uncertain one; that of which they have unlike amounts is named."""
    wide = UncertainConstants({WIDE: 0.8, NARROW: 0.05})
    steps = [made_of({str(WIDE): 2.0, str(NARROW): 1.0}), made_of({str(WIDE): 2.0, "fused attention": 1.0}, 2)]
    found = certainty(steps, wide)
    assert found.telling is not None
    assert found.telling.constant == "fused attention"


def _by_config(found: Certainty) -> dict[int, float]:
    return {one.config.dp: one.probability for one in found.standings}


def test_neither_the_order_of_plans_nor_other_constants_change_it() -> None:
    steps = [
        made_of({str(WIDE): 2.0}),
        made_of({str(NARROW): 1.99}, 2),
        made_of({str(WIDE): 0.9, str(NARROW): 1.1}, 3),
    ]
    found, turned = certainty(steps, CONSTANTS), certainty(steps[::-1], CONSTANTS)
    assert _by_config(found) == _by_config(turned)
    assert found.telling == turned.telling
    more = [*steps, made_of({str(WIDE): 9.0, "links to the host": 1.0}, 4)]
    assert certainty(more, CONSTANTS).probability == found.probability


def _scaled(plan: Plan, factors: dict[CostKey, float]) -> Plan:
    scaled = {
        key: Coefficients(*(factors.get(key, 1.0) * x for x in (one.fixed_s, one.s_per_flop, one.s_per_byte)))
        for key, one in plan.cost.coefficients.items()
    }
    return replace(plan, cost=replace(plan.cost, coefficients=scaled))


def _calibrated(name: str) -> tuple[Plan, Calibration]:
    """A small plan priced by measured constants of all kinds that it has, those of the data sheet."""
    plan = small_plan(name)
    parts = [part for seen in plan.priced.features for part in seen.parts or (seen,)]
    fitted = {part.key: Fitted(plan.cost.coefficients_of(part), 9, 90, ("here",), 0.2, (part,)) for part in parts}
    calibration = Calibration(plan.cluster.name, fitted, 3e-6)
    return replace(plan, cost=calibration.cost_model(plan.cluster)), calibration


@pytest.mark.parametrize("name", CONFIGS)
def test_a_drawn_step_is_that_of_the_objective_under_other_constants(name: str) -> None:
    plan, calibration = _calibrated(name)
    constants = UncertainConstants.of(calibration)
    found = step_of_constants(plan, constants)
    assert found.drawn_s({}) == pytest.approx([plan.claims.step_time_s], rel=1e-12)
    keys = sorted(calibration.fitted)
    assert set(found.by_constant_ns) == set(map(str, keys))
    for turned in ([keys[0]], keys[::3], keys):
        factors = {key: 1.5 + 0.1 * number for number, key in enumerate(turned)}
        drawn_s = found.drawn_s({str(key): np.full(2, factor) for key, factor in factors.items()})
        objective = _scaled(plan, factors).priced.objective_ns / plan.priced.objective_ns
        assert drawn_s == pytest.approx(np.full(2, plan.claims.step_time_s * objective), rel=1e-3)


def _fitted(spread: float, rows: int) -> Fitted:
    point = Features("all_reduce", 0, 10, 1, "inter")
    return Fitted(Coefficients(1e-6, 0.0, 1e-9), rows, rows, ("here",), spread, (point,))


def test_half_widths_are_those_of_the_fit_or_of_what_was_never_seen() -> None:
    """Three rows have as many constants: what they lie off the fit says nothing."""
    for spread, rows, known in ((0.2, 9, math.log(1.2)), (0.0, 3, unseen_half_width())):
        constants = UncertainConstants.of(Calibration("here", {WIDE: _fitted(spread, rows)}))
        assert constants.half_width(str(WIDE)) == pytest.approx(known)
        assert constants.half_width("fused attention") == unseen_half_width() > math.log(1.2)


@pytest.mark.parametrize(
    ("features", "name"),
    [
        (Features("all_gather", 0, 8, 3, "inter"), "links between nodes"),
        (Features("transfer", 0, 8, 1, "intra"), "links inside of nodes"),
        (Features("to_host", 0, 8), "links to the host"),
        (Features("matmul", 8, 8), "matrix products"),
        (Features("add", 8, 8), "memory-bound kernels"),
    ],
)
def test_what_was_not_measured_goes_by_a_figure_of_the_data_sheet(features: Features, name: str) -> None:
    assert UncertainConstants().name_of(features) == name


def _plans(names: Sequence[str]) -> list[Plan]:
    return [small_plan(name) for name in names]


def test_plans_that_are_searched_for_are_compared_while_there_is_time() -> None:
    plans = _plans(["data", "tensor", "zero"])
    found = certainty_among(plans, None, UNLIMITED)
    assert isinstance(found, Certainty)
    assert [one.config for one in found.standings] == [plan.config for plan in plans]
    assert sum(one.probability for one in found.standings) == pytest.approx(1)
    assert "the data sheet's intervals" in str(found)
    late = certainty_among(plans, None, Budget.of(0.0))
    assert isinstance(late, Certainty)
    assert len(late.standings) == 2


def test_one_plan_alone_and_constants_without_intervals_say_nothing() -> None:
    plan, calibration = _calibrated("data")
    assert certainty_among([plan], calibration, UNLIMITED) is ALONE
    assert certainty_among([plan, plan], None, UNLIMITED) is WITHOUT_INTERVALS
    found = certainty_among([plan, plan], calibration, UNLIMITED)
    assert isinstance(found, Certainty)
    assert found.document()["intervals"] == "calibration"
    assert isinstance(plan.cost, CostModel)
