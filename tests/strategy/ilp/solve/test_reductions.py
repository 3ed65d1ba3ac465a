"""What single reductions find, that they leave the optimum as it is, and when they stop."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from strategy.base.budget import Budget
from strategy.ilp.certificate.check import check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Certificate, Drop, Merge, MessageBound, Prices, Proof
from strategy.ilp.check import check_solution
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import brute_force
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import Core, NoChoiceError
from strategy.ilp.solve.memory_rows import drop_oversized, drop_slack_rows
from strategy.ilp.solve.reductions import (
    drop_dominated,
    drop_forbidden,
    eliminate_leaves,
    eliminate_links,
    merge_functional,
    normalise,
    reduce_core,
)
from tests.strategy.ilp.certificate.proofs import sizes
from tests.strategy.ilp.problems import ladder, random_problem
from tests.strategy.ilp.solve.oracle import lifted, optimum


def _drop_slack_rows(core: Core) -> None:
    drop_oversized(core)
    drop_dominated(core)
    core.steps.clear()
    drop_slack_rows(core)


@cache
def solved_problems() -> list[tuple[Problem, tuple[int, tuple[int, ...]] | None]]:
    """Some random problems, and the best choice of each."""
    rng = random.Random(11)
    return [(problem, brute_force(problem)) for problem in (random_problem(rng) for _ in range(80))]


@pytest.mark.parametrize(
    "reduction",
    [
        normalise, _drop_slack_rows, drop_forbidden, drop_oversized, drop_dominated, merge_functional,
        eliminate_leaves, eliminate_links, reduce_core,
    ],
)  # fmt: skip
def test_a_reduction_leaves_the_optimum_as_it_was(reduction: Callable[[Core], None]) -> None:
    changed = feasible = 0
    for problem, oracle in solved_problems():
        try:
            core = build_core(problem)
            core.steps.clear()
            reduction(core)
            changed += len(core.steps) > 0
        except NoChoiceError:
            assert oracle is None
            continue
        after = optimum(core)
        assert (None if after is None else after[0]) == (None if oracle is None else oracle[0])
        if after is not None:
            feasible += 1
            assert check_solution(problem, lifted(core, after[1], problem), after[0]) == []
    assert changed >= 10
    assert feasible >= 32


def test_dominance_names_a_winner_that_stays() -> None:
    """Of equals the first stays; the last is cheaper but holds more."""
    node = Node("a", (5, 4, 4, 9, 0), (Usage(0, 2, (3, 2, 2, 2, 9)),))
    problem = Problem("p", (node, Node("b", (0, 1), (Usage(0, 2, (9, 0)),))), (Edge(0, 1, (0,) * 10),), limit=12)
    core = build_core(problem)
    core.steps.clear()
    drop_dominated(core, [0])
    (step,) = core.steps
    assert isinstance(step, Drop)
    assert (step.node, step.choices.tolist(), step.by.tolist()) == (0, [0, 2, 3], [1, 1, 1])


def test_of_a_bijection_the_node_with_fewer_tables_moves() -> None:
    identity = (0, FORBIDDEN, FORBIDDEN, 0)
    problem = Problem(
        "p",
        tuple(Node(f"n{i}", (0, 1)) for i in range(4)),
        (Edge(0, 1, identity), Edge(0, 2, (0, 1, 2, 0)), Edge(0, 3, (1, 0, 0, 3))),
    )
    core = build_core(problem)
    core.steps.clear()
    merge_functional(core)
    assert core.steps == [Merge(1, 0)]


def test_reductions_stop_in_time_with_a_whole_core() -> None:
    """What was done until then is proved, at every moment of a longer run."""
    problem = ladder(rungs=40, seed=1, limit=3 * 10**9)
    started_s = time.monotonic()
    reduce_core(build_core(problem))
    taken_s = time.monotonic() - started_s
    stops = set()
    for part in range(8):
        core = build_core(problem)
        core.budget = Budget.of(taken_s * part / 8)
        reduce_core(core)
        assert time.monotonic() - core.budget.deadline_s < 1.0
        prices, messages = np.zeros(len(core.room), np.int64), np.zeros(sizes(core), np.int64)
        proof = Proof(tuple(core.steps), MessageBound(Prices(prices, 0, 0), messages))
        verdict = check(problem, Certificate(problem_digest(problem), None, None, core.constant, proof))
        assert verdict.steps == len(core.steps)
        stops.add(verdict.steps)
    assert len(stops) >= 2
