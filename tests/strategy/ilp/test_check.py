"""The checker: legal answers pass, and every kind of fault is named."""

from __future__ import annotations

import random

import pytest

from strategy.ilp.check import check_solution
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage, evaluate
from tests.strategy.ilp.problems import random_problem

PROBLEM = Problem(
    "p",
    (
        Node("embed", (1, FORBIDDEN), (Usage(0, 2, (50, 5)),)),
        Node("matmul", (3, 4), (Usage(1, 3, (10, 60)),)),
    ),
    (Edge(0, 1, (0, 7, FORBIDDEN, 0)),),
    limit=100,
)


def test_a_legal_answer_has_no_faults() -> None:
    assert check_solution(PROBLEM, (0, 0), 4) == []


@pytest.mark.parametrize(
    ("choice", "cost", "words"),
    [
        ((0,), 4, ["1 entries", "expected 2"]),
        ((0, 2), 4, ["node 1 (matmul)", "choice 2", "0..1"]),
        ((0, -1), 4, ["node 1 (matmul)", "choice -1"]),
        ((0, True), 4, ["choice True"]),
        ((0, 0), 5, ["costs 4", "says 5"]),
        ((1, 0), 2 * FORBIDDEN + 3, ["node 0 (embed)", "forbidden", "edge 0", "node 1 (matmul)"]),
        ((0, 1), 12, ["time 1", "110 bytes", "at most 100", "60 bytes of node 1 (matmul)"]),
    ],
)
def test_each_fault_is_named(choice: tuple[int, ...], cost: int, words: list[str]) -> None:
    faults = "\n".join(check_solution(PROBLEM, choice, cost))
    assert faults
    for word in words:
        assert word in faults


def test_the_checker_agrees_with_evaluate_on_random_choices() -> None:
    rng = random.Random(7)
    legal = too_large = forbidden = 0
    for _ in range(400):
        problem = random_problem(rng)
        choice = [rng.randrange(len(node.costs)) for node in problem.nodes]
        value = evaluate(problem, choice)
        faults = "\n".join(check_solution(problem, choice, value.cost))
        over = problem.limit is not None and value.peak > problem.limit
        assert ("memory" in faults) == over
        assert ("forbid" in faults) == (value.cost >= FORBIDDEN)
        if over:
            assert f"is {value.peak} bytes" in faults
        legal, too_large, forbidden = legal + (not faults), too_large + over, forbidden + ("forbid" in faults)
    assert min(legal, too_large, forbidden) >= 40, (legal, too_large, forbidden)
