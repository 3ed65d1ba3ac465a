"""A seeded part of the solver's campaigns: `python -m tests.campaigns solver|copies|joined|repeat`."""

from __future__ import annotations

import math
import random

import pytest

from strategy.ilp.solve import brute_force
from tests.campaigns import repeat, solver
from tests.campaigns.copies import copied
from tests.campaigns.joined import joined
from tests.strategy.ilp.problems import random_problem
from tests.support.long_parameters import long_but


@pytest.mark.parametrize("cases", long_but([20, 60], 0))
def test_the_solver_agrees_with_every_choice_listed(cases: int) -> None:
    outcome = solver.run(cases, seed=9000)
    assert outcome.failures == []
    assert outcome.coverage["infeasible"] >= cases // 10


@pytest.mark.long
def test_the_same_problem_has_the_same_answer_in_any_process() -> None:
    outcome = repeat.run(8, seed=1)
    assert outcome.failures == []
    assert outcome.unmet() == []


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_has_the_scaled_optimum(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng)
    copy = copied(problem, rng, 3)
    one, other = brute_force(problem), brute_force(copy)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert other[0] == 3 * one[0]
    assert len(copy.nodes) == len(problem.nodes)


def test_what_is_joined_costs_what_its_parts_do_unless_they_share_memory() -> None:
    rng = random.Random(8)
    cheaper = 0
    for _ in range(600):
        one, other = (random_problem(rng) for _ in range(2))
        if math.prod(len(node.costs) for node in (*one.nodes, *other.nodes)) > 2_000:
            continue
        alone = brute_force(one), brute_force(other)
        if None in (*alone, one.limit, other.limit) or 0 in (one.limit, other.limit):
            continue
        assert alone[0] is not None
        assert alone[1] is not None
        after = brute_force(joined(one, other, scale=2, beside=False))
        beside = brute_force(joined(one, other, scale=2, beside=True))
        assert after is not None
        assert beside is not None
        assert after[0] <= alone[0][0] + 2 * alone[1][0]
        assert beside[0] <= alone[0][0] + 2 * alone[1][0]
        cheaper += beside[0] < after[0]
    assert cheaper >= 3
