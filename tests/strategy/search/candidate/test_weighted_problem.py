"""Weighted problems: solving begins with what is known, and ends no worse than that."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from strategy.ilp.problem import evaluate
from strategy.passes.training import Training
from strategy.search.candidate.candidates import free_rules, space_of
from strategy.search.candidate.weighted_problem import OutOfTimeError, Weighted
from strategy.search.layouts.space import SearchSpace
from tests.support.small_plans import config_of, request

TRAINING = Training(global_batch=4, num_micro_batches=2)
CONFIG = config_of(TRAINING, tp=2)


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return space_of(request(2, TRAINING), CONFIG, free_rules(CONFIG))


def test_what_a_person_would_choose_is_where_solving_begins(space: SearchSpace) -> None:
    weighted = Weighted.of(space, None, math.inf, None)
    by_hand = weighted.by_hand()
    assert by_hand is not None
    assert space.by_hand is not None
    assert all(space.by_hand(op, by_hand[op.name]) for op in space.graph.ops)
    bound, signatures = weighted.solve(by_hand)
    assert signatures is not None
    problem = weighted.problem
    best, begun = (evaluate(problem.problem, problem.choice_of(known)).cost for known in (signatures, by_hand))
    assert bound == best <= begun


def test_a_space_by_hand_has_no_other_start() -> None:
    by_rule = space_of(request(2, TRAINING), CONFIG, CONFIG.axes)
    assert Weighted.of(by_rule, None, math.inf, None).by_hand() is None


def test_under_a_limit_the_answer_is_no_worse_than_what_is_known_and_fits(space: SearchSpace) -> None:
    free = Weighted.of(space, None, math.inf, None)
    by_hand = free.by_hand()
    _, best = free.solve()
    assert by_hand is not None
    assert best is not None
    roomy = Weighted.of(space, 2**40, math.inf, None).problem
    known = [evaluate(roomy.problem, roomy.choice_of(signatures)) for signatures in (by_hand, best)]
    limit = min(value.peak for value in known)
    tight = Weighted.of(space, limit, time.monotonic() + 20, None)
    _, signatures = tight.solve(by_hand, best)
    assert signatures is not None
    found = evaluate(tight.problem.problem, tight.problem.choice_of(signatures))
    assert found.peak <= limit
    assert found.cost <= min(value.cost for value in known if value.peak <= limit)


def test_the_time_is_kept_to(space: SearchSpace) -> None:
    with pytest.raises(OutOfTimeError, match="the time is up"):
        Weighted.of(space, None, time.monotonic() - 1, None)


def test_weights_share_what_is_known_of_the_ops(space: SearchSpace) -> None:
    op = space.graph.ops[0]
    assert replace(space, weights=(2,)).options(op) is space.options(op)
