"""What the solver claims is what its proof shows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from strategy.base.budget import Budget
from strategy.base.status import Status
from strategy.ilp.certificate.check import CheckedCertificate, check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.file import read_certificate, write_certificate
from strategy.ilp.certificate.proof import Certificate
from strategy.ilp.problem import Problem
from strategy.ilp.solve import Solution, smallest_limit, solve
from tests.strategy.ilp.problems import ladder, random_problem
from tests.support.long_parameters import long_but


def _claim(problem: Problem, answer: Solution) -> Certificate:
    assert answer.proof is not None
    bound = None if answer.status == Status.INFEASIBLE else answer.lower_bound
    return Certificate(problem_digest(problem), answer.choice, answer.cost, bound, answer.proof)


def _checked(problem: Problem, answer: Solution, path: Path) -> CheckedCertificate:
    write_certificate(path, _claim(problem, answer))
    return check(problem, read_certificate(path))


@pytest.mark.parametrize("cases", long_but([30, 200], 0))
def test_every_answer_to_random_problems_is_proved(tmp_path: Path, cases: int) -> None:
    rng = random.Random(12)
    seen: Counter[str] = Counter()
    for _ in range(cases):
        problem = random_problem(rng)
        answer = solve(problem)
        verdict = _checked(problem, answer, tmp_path / "proof")
        seen[answer.status] += 1
        if answer.status == Status.INFEASIBLE:
            assert verdict.proved is None
        else:
            assert verdict.gap == 0.0
        if answer.cost is not None:
            cut_off = solve(problem, cutoff=answer.cost)
            assert cut_off.status == Status.CUTOFF
            assert _checked(problem, cut_off, tmp_path / "proof").lower_bound == answer.cost
    assert seen[Status.OPTIMAL] >= cases / 2
    assert seen[Status.INFEASIBLE] >= cases / 5


@pytest.mark.parametrize("works", long_but([([1, 10],), ([1, 10, 100],)], 0), ids=["little", "more"])
def test_a_search_that_is_cut_short_proves_its_bound(tmp_path: Path, works: list[int]) -> None:
    """Under a tight limit, for more and more work: cases that were left open count with what they have."""
    problem = ladder(rungs=20, seed=2)
    least = smallest_limit(problem)
    assert least is not None
    tight = replace(problem, limit=int(1.1 * least))
    bounds = []
    for work_limit in works:
        answer = solve(tight, budget=Budget.of(work_limit=work_limit))
        verdict = _checked(tight, answer, tmp_path / "proof")
        assert verdict.lower_bound == answer.lower_bound
        bounds.append(answer.lower_bound)
    assert bounds[-1] > bounds[0]


def test_what_every_choice_of_a_node_costs_does_not_make_costs_coarse(tmp_path: Path) -> None:
    """Bounds are as fine as choices differ, on top of 2^40 that each of them costs."""
    tight = replace(ladder(rungs=6, seed=2), limit=None)
    least = smallest_limit(replace(tight, limit=0))
    assert least is not None
    dear = [replace(node, costs=tuple(cost + 2**40 for cost in node.costs)) for node in tight.nodes]
    problem = replace(tight, nodes=tuple(dear), limit=int(1.05 * least))
    answer = solve(problem, budget=Budget.of(work_limit=10))
    assert _checked(problem, answer, tmp_path / "proof").lower_bound == answer.lower_bound > 2**40 * len(dear)
