"""Refinement by runs: acts first, then one factor for what ranks lose waiting for one another."""

from dataclasses import replace

import pytest

from executor.train import program_of
from experiments.loop.refinement import Observation, predict_s, refine_by
from simulator.simulate import simulate
from strategy.cost.calibrate import Calibration, calibrate
from strategy.cost.measurement import Measurement
from strategy.passes.training import Training
from strategy.plan.observe import features_by_action, observe
from strategy.plan.plan import Plan
from tests.support.small_plans import config_of, plan_by_rules, request


def small_plan() -> Plan:
    return plan_by_rules(
        request(2, Training(global_batch=8)), config_of(Training(global_batch=8), tp=2), ("data", "tensor")
    )


def observation(plan: Plan, *, waits: float) -> Observation:
    """A run that goes as the plan's own prices say, but takes `waits` times as long as its acts add up to."""
    program = program_of(plan)
    found = simulate(program, steps=6)
    rows = observe(found.timeline, program, features_by_action(plan), plan.cost, source="run", steps=range(1, 6))
    return Observation(plan, rows, 0.0, found.step_time_s * waits)


def base_of(plan: Plan, *, off: float) -> Calibration:
    rows = [replace(row, seconds=row.seconds * off, source="profile") for row in observation(plan, waits=1).rows]
    return calibrate(rows, plan.cluster)


@pytest.mark.parametrize("waits", [1.0, 1.4])
def test_the_step_of_a_run_is_explained_by_its_acts_and_one_factor(waits: float) -> None:
    plan = small_plan()
    found = observation(plan, waits=waits)
    base = base_of(plan, off=0.4)
    refined = refine_by(base, [found], plan.cluster)
    assert predict_s(plan, refined) == pytest.approx(found.step_time_s, rel=0.01)
    assert predict_s(plan, base) < 0.6 * found.step_time_s


def test_the_factor_reaches_kinds_that_no_run_measured() -> None:
    plan = small_plan()
    found = observation(plan, waits=1.5)
    rare = Measurement(replace(found.rows[0].features, kind="rare"), 1e-3, 5, "profile")
    base = calibrate([*found.rows, rare], plan.cluster)
    refined = refine_by(base, [found], plan.cluster)
    before, after = (c.cost_model(plan.cluster).seconds(rare.features) for c in (base, refined))
    assert after == pytest.approx(1.5 * before, rel=0.02)
