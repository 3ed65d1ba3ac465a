"""The oracle itself, on problems that are worked by hand."""

from __future__ import annotations

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem
from strategy.ilp.solve import brute_force
from strategy.ilp.solve.brute_force import brute_force_peak
from tests.strategy.ilp.solve.oracle import DILEMMA


def test_the_first_of_the_cheapest_choices() -> None:
    problem = Problem("p", (Node("a", (1, 2)), Node("b", (3, 4))), (Edge(0, 1, (9, 0, 0, 9)),))
    assert brute_force(problem) == (5, (0, 1))


def test_memory_and_forbidden_pairs_exclude() -> None:
    assert brute_force(DILEMMA) == (10, (1,))
    assert brute_force_peak(DILEMMA) == 0
    assert brute_force(Problem("shut", (Node("a", (FORBIDDEN,)),), ())) is None
    assert brute_force_peak(Problem("shut", (Node("a", (FORBIDDEN,)),), ())) is None
