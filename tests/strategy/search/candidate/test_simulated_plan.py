"""A plan takes the time that it was said to take, or is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.passes.training import Training
from strategy.program.program import Program
from strategy.search.candidate import simulated_plan as module
from strategy.search.candidate.candidate_solve import Solved, solve_candidate
from strategy.search.candidate.fitted_plan import fitted_plan
from strategy.search.candidate.simulated_plan import SimulatedStep, planning_s, simulated_plan
from tests.support.small_plans import config_of, no_simulation, request

TRAINING = Training(global_batch=4)
ASKED = request(2, TRAINING)


@pytest.fixture(scope="module")
def solved() -> Solved:
    config = config_of(TRAINING, dp=2)
    found = solve_candidate(ASKED, config, rules=config.axes)
    assert found is not None
    return found


def test_more_ops_micro_batches_and_ranks_take_longer() -> None:
    config = config_of(TRAINING, dp=2)
    least = planning_s(1000, config)
    assert least < planning_s(2000, config)
    assert least < planning_s(1000, replace(config, num_micro_batches=2 * config.num_micro_batches))
    assert least < planning_s(1000, replace(config, pp=4))


def test_it_is_given_up_where_the_time_is_over(solved: Solved) -> None:
    with pytest.raises(OutOfTimeError, match="raise the time limit"):
        simulated_plan(ASKED, solved, no_simulation, budget=Budget.of(0))
    assert simulated_plan(ASKED, solved, no_simulation, budget=Budget.of(600)).config == solved.config


def test_nothing_is_simulated_that_would_take_too_long(solved: Solved, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(program: Program) -> SimulatedStep:
        pytest.fail(f"{len(program.actors)} actors were simulated")

    monkeypatch.setattr(module, "ACT_S", 1e6)
    with pytest.raises(OutOfTimeError, match="no time left to simulate"):
        simulated_plan(ASKED, solved, simulate, budget=Budget.of(600))


def test_what_is_needed_is_finished_however_long_it_takes(solved: Solved) -> None:
    assert fitted_plan(ASKED, solved, no_simulation, budget=Budget.of(0)).config == solved.config
    with pytest.raises(OutOfTimeError):
        fitted_plan(ASKED, solved, no_simulation, budget=Budget.of(0), needed=False)
