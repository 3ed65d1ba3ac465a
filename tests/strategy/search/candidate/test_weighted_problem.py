"""Weighted problems: solving begins with what is known, and ends no worse than that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.bounds.path_mix import mixed
from strategy.ilp.problem import evaluate
from strategy.ilp.solve import largest_cost
from strategy.passes.training import Training
from strategy.search.candidate import weighted_problem
from strategy.search.candidate.weighted_problem import WeightedProblem
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.space import SearchSpace
from tests.support.small_plans import config_of, request

TRAINING = Training(global_batch=4, num_micro_batches=2)
CONFIG = config_of(TRAINING, tp=2)


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return space_of(request(2, TRAINING), CONFIG, free_rules(CONFIG))


def test_what_a_person_would_choose_is_where_solving_begins(space: SearchSpace) -> None:
    weighted = WeightedProblem.of(space, None, UNLIMITED, None)
    rule_based = weighted.rule_based()
    assert rule_based is not None
    assert space.rule_based is not None
    assert all(space.rule_based(op, rule_based[op.name]) for op in space.graph.ops)
    answer = weighted.solve(rule_based)
    signatures = answer.signatures
    assert signatures is not None
    problem = weighted.problem
    best, begun = (evaluate(problem.problem, problem.choice_of(known)).cost for known in (signatures, rule_based))
    assert answer.bound_ns == -(-best // space.paths.number)
    assert best <= begun


@pytest.mark.long
def test_costs_that_are_too_large_to_be_added_are_coarser(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is one of the finer problem, to about the bits that are left, and so is its cutoff."""
    fine = WeightedProblem.of(space, None, UNLIMITED, None)
    exact = fine.solve()
    most = largest_cost(fine.problem.problem)
    for bits in (1, 5):
        monkeypatch.setattr(weighted_problem, "MAX_TOTAL_COST", most >> bits)
        coarse = WeightedProblem.of(space, None, UNLIMITED, None)
        assert coarse.mix.coarse == bits
        assert largest_cost(coarse.problem.problem) <= most >> bits
        answer = coarse.solve()
        assert 0.9 * exact.bound_ns <= answer.bound_ns <= exact.bound_ns
        assert answer.why is not None
        assert answer.why.mix.coarse == bits
        wanted = WeightedProblem.of(space, None, UNLIMITED, exact.bound_ns + 1).solve()
        assert wanted.signatures is not None


def test_a_space_by_hand_has_no_other_start() -> None:
    by_rule = space_of(request(2, TRAINING), CONFIG, CONFIG.axes)
    assert WeightedProblem.of(by_rule, None, UNLIMITED, None).rule_based() is None


@pytest.mark.long
def test_under_a_limit_the_answer_is_no_worse_than_what_is_known_and_fits(space: SearchSpace) -> None:
    free = WeightedProblem.of(space, None, UNLIMITED, None)
    rule_based = free.rule_based()
    best = free.solve().signatures
    assert rule_based is not None
    assert best is not None
    roomy = WeightedProblem.of(space, 2**40, UNLIMITED, None).problem
    known = [evaluate(roomy.problem, roomy.choice_of(signatures)) for signatures in (rule_based, best)]
    limit = min(value.peak for value in known)
    tight = WeightedProblem.of(space, limit, Budget.of(20), None)
    signatures = tight.solve(rule_based, best).signatures
    assert signatures is not None
    found = evaluate(tight.problem.problem, tight.problem.choice_of(signatures))
    assert found.peak <= limit
    assert found.cost <= min(value.cost for value in known if value.peak <= limit)


def test_the_time_is_kept_to(space: SearchSpace) -> None:
    with pytest.raises(OutOfTimeError, match="the time is up"):
        WeightedProblem.of(space, None, Budget.of(-1), None)


def test_paths_share_what_is_known_of_the_ops(space: SearchSpace) -> None:
    op = space.graph.ops[0]
    assert replace(space, along=mixed([space.paths, space.paths], [1, 1])).options(op) is space.options(op)
