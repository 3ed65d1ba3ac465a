"""Candidate solves: the bound is below the objective, memory is kept to, and what is cut off is proved no better."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError, SbpError
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.critical_path import critical_path
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import TICKS, in_ticks, mean_path
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import Solved, _Examination, examine, solve_candidate, solved_as
from strategy.search.candidate.weighted_problem import WeightedAnswer, WeightedProblem
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.layout_problem import layout_problem
from strategy.space.request import Request
from strategy.space.space import SearchSpace
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, request

STAGES = config_of(Training(global_batch=4, num_micro_batches=2), pp=2)
RANKS = config_of(Training(global_batch=4, num_micro_batches=2), tp=2)


@pytest.fixture(scope="module")
def asked() -> Request:
    return request(2, Training(global_batch=4))


def solved(asked: Request, config: PlanConfig) -> Solved:
    found = solve_candidate(asked, config, rules=config.axes)
    assert found is not None
    return found


@pytest.mark.parametrize("config", [STAGES, RANKS])
def test_the_bound_is_below_the_objective(asked: Request, config: PlanConfig) -> None:
    found = solved(asked, config)
    assert 0 < found.bound_ns <= found.objective_ns
    assert len(found.peaks) == config.pp


@pytest.mark.parametrize("config", [STAGES, RANKS])
def test_no_layout_is_better_than_the_best(asked: Request, config: PlanConfig) -> None:
    best_ns = solved(asked, config).bound_ns
    verdict = examine(asked, config, config.axes, UNLIMITED, best_ns)
    assert verdict.bound_ns == best_ns


def test_a_limit_changes_no_free_bound_and_is_kept_to(asked: Request) -> None:
    free = examine(asked, RANKS, RANKS.axes, UNLIMITED, None)
    assert free.solved is not None
    limit = max(free.solved.peaks)
    same = examine(replace(asked, memory_limit_bytes=limit), RANKS, RANKS.axes, UNLIMITED, None)
    assert same.solved is not None
    assert max(same.solved.peaks) <= limit
    nothing = examine(replace(asked, memory_limit_bytes=1000), RANKS, RANKS.axes, UNLIMITED, None)
    assert (nothing.free_bound_ns, nothing.bound_ns, nothing.solved) == (free.free_bound_ns, None, None)


@pytest.mark.long
def test_what_a_person_would_choose_is_the_answer_where_memory_is_scarce_and_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(global_batch=8, num_micro_batches=4)
    config = config_of(training, pp=2, tp=2)
    roomy = request(4, training)
    free = examine(roomy, config, free_rules(config), UNLIMITED, None).solved
    space = space_of(roomy, config, free_rules(config))
    by_rule = WeightedProblem.of(space, None, UNLIMITED, None).rule_based()
    assert free is not None
    assert by_rule is not None
    layout = lay_out(space.graph, space.stages, by_rule, space.converter)
    rule_based = solved_as(config, Priced(space.graph, layout, space.pipeline, space.cost), 0)
    asked = replace(roomy, memory_limit_bytes=max(rule_based.peaks))
    of = WeightedProblem.of

    def out_of_time_under_a_limit(space: SearchSpace, limit: int | None, *rest: Any) -> WeightedProblem:
        if limit is not None:
            raise OutOfTimeError("the time is up")
        return of(space, limit, *rest)

    monkeypatch.setattr(WeightedProblem, "of", staticmethod(out_of_time_under_a_limit))
    monkeypatch.setattr(_Examination, "_fits", lambda self, found: max(found.peaks) == max(rule_based.peaks))
    found = examine(asked, config, free_rules(config), UNLIMITED, None)
    assert found.solved is not None
    assert found.solved.peaks == rule_based.peaks != free.peaks
    assert found.solved.bound_ns == free.bound_ns <= found.solved.objective_ns


def test_what_is_beaten_but_for_a_nanosecond_keeps_its_bound(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver rounds otherwise: it stops at 98 ns, where 99 are wanted, and has found nothing; something may fit."""
    monkeypatch.setattr(WeightedProblem, "rule_based", lambda self: None)
    monkeypatch.setattr(WeightedProblem, "solve", lambda self, *known: WeightedAnswer(98, None, None))
    found = examine(asked, RANKS, RANKS.axes, UNLIMITED, 100, gap=0.01)
    assert (found.free_bound_ns, found.bound_ns, found.solved) == (98, 98, None)


def test_no_time_no_verdict(asked: Request) -> None:
    with pytest.raises(OutOfTimeError):
        solve_candidate(asked, RANKS, rules=RANKS.axes, budget=Budget.of(0))


@pytest.mark.parametrize("schedule", long_but(Schedule, 3))
def test_no_bound_is_above_any_choice_of_a_pipeline(schedule: Schedule) -> None:
    """Random choices in which layers are alike; of the paths that all stages count in, and of the best layout's own."""
    training, rng = Training(global_batch=8, num_micro_batches=4), random.Random(schedule)
    config = config_of(training, pp=2, tp=2, schedule=schedule)
    asked = request(4, training, model=replace(MODEL, layers=4), backend=rng.choice(("numpy", "cupy")))
    space = space_of(asked, config, free_rules(config))
    verdict = examine(asked, config, free_rules(config), UNLIMITED, None)
    assert verdict.solved is not None
    best = verdict.solved
    assert verdict.free_bound_ns == best.bound_ns <= best.objective_ns <= 1.1 * best.bound_ns
    problem = layout_problem(space)
    critical = critical_path(schedule, 4, in_ticks(schedule, 4, best.times))
    paths = [space.paths, mean_path(schedule, 4, best.times, critical)]
    assert -(-paths[1].length(best.times) // TICKS) == best.objective_ns
    tried = 0
    while tried < 40:
        found = best.layout.signatures
        drawn = {names[0]: rng.choice(options) for names, options in problem.classes}
        signatures = {
            name: drawn[names[0]] if rng.random() < 0.1 else found[name]
            for names, options in problem.classes
            for name in names
        }
        try:
            layout = lay_out(space.graph, space.stages, signatures, space.converter)
        except SbpError:
            continue
        tried += 1
        priced = Priced(space.graph, layout, space.pipeline, space.cost)
        assert best.bound_ns <= priced.objective_ns
        for one in paths:
            assert one.length(priced.times) <= one.number * priced.objective_ns
