"""Bucket elimination against the oracle, and a chain worked by hand."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, evaluate
from strategy.ilp.solve import brute_force
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import NoChoiceError
from strategy.ilp.solve.elimination import MOST_AXES, eliminate, min_marginals, plan_elimination
from tests.strategy.ilp.problems import ladder, random_problem
from tests.strategy.ilp.solve.oracle import lifted, optimum


def test_elimination_and_min_marginals_equal_the_oracle() -> None:
    rng = random.Random(5)
    compared = 0
    for _ in range(120):
        problem = replace(random_problem(rng), limit=None)
        oracle = brute_force(problem)
        try:
            core = build_core(problem)
        except NoChoiceError:
            continue
        buckets = plan_elimination(core, max_cells=1 << 20)
        assert buckets is not None
        run = eliminate(buckets, core.costs)
        if oracle is None:
            assert run.cost >= FORBIDDEN
            continue
        assert run.cost + core.constant == oracle[0]
        assert evaluate(problem, lifted(core, run.picks, problem)).cost == oracle[0]
        marginals = min_marginals(buckets, run)
        node = rng.choice(list(core.costs))
        for pick in range(core.costs[node].size):
            fixed = core.copy()
            fixed.keep_choices(node, np.array([pick]))
            expected = optimum(fixed)
            found = int(marginals[node][pick])
            assert (expected is None and found >= FORBIDDEN) or (
                expected is not None and found + core.constant == expected[0]
            )
            compared += 1
    assert compared >= 100


def test_an_elimination_that_is_too_wide_is_not_planned() -> None:
    assert plan_elimination(build_core(ladder(rungs=4)), max_cells=1000) is None


@pytest.mark.parametrize(("leaves", "planned"), [(MOST_AXES - 1, True), (MOST_AXES, False)])
def test_an_elimination_of_more_axes_than_arrays_have_is_not_planned(leaves: int, planned: bool) -> None:
    """All of a clique but one have a single choice: few cells, many axes."""
    nodes = (Node("a", (0, 1)), *(Node(f"n{i}", (i,)) for i in range(leaves)))
    pairs = itertools.combinations(range(len(nodes)), 2)
    edges = tuple(Edge(one, other, (0,) * (2 if one == 0 else 1)) for one, other in pairs)
    core = build_core(Problem("clique", nodes, edges))
    buckets = plan_elimination(core, max_cells=1 << 20)
    assert (buckets is not None) is planned
    if buckets is not None:
        assert eliminate(buckets, core.costs).cost + core.constant == sum(range(leaves))


def test_a_chain_is_eliminated_by_its_min_marginals() -> None:
    """Every choice of b: what a and c add to it at best."""
    nodes = (Node("a", (0, 5)), Node("b", (0, 1)), Node("c", (2, 0)))
    core = build_core(Problem("chain", nodes, (Edge(0, 1, (7, 0, 1, 1)), Edge(1, 2, (0, 4, 3, 0)))))
    buckets = plan_elimination(core, max_cells=100)
    assert buckets is not None
    result = eliminate(buckets, core.costs)
    assert result.cost + core.constant == 0 + 1 + 0 + 0 + 0 == 1
    assert core.lift(result.picks) == {0: 0, 1: 1, 2: 1}
    marginals = min_marginals(buckets, result)
    assert {node: (total + core.constant).tolist() for node, total in marginals.items()} == {
        0: [1, 7],
        1: [8, 1],
        2: [6, 1],
    }
