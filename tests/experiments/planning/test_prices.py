"""A search tells of its plan's simulation no more than its time; who wants the rest has it once more."""

from __future__ import annotations

from experiments.planning.prices import KeptSimulations, program_of
from simulator.simulate import simulate
from strategy.base.budget import Budget
from strategy.passes.training import Training
from strategy.search.search import search
from tests.support.small_plans import request


def test_a_simulation_of_another_process_is_made_once_more() -> None:
    kept = KeptSimulations()
    plan = search(request(2, Training(global_batch=2)), simulate=kept, budget=Budget.of(20)).plan
    expected = simulate(program_of(plan, plan.cost))
    assert kept.of(plan).step_time_s == expected.step_time_s == plan.claims.step_time_s
    elsewhere = KeptSimulations()
    assert elsewhere.of(plan).idle_share == expected.idle_share
    assert elsewhere.of(plan) is elsewhere.of(plan)
