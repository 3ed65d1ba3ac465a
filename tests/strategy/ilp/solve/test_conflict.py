"""Conflicts: the times at which too much is held, whatever is chosen."""

from __future__ import annotations

import random
from dataclasses import replace

from strategy.ilp.problem import Edge, Node, Problem, Usage
from strategy.ilp.solve import smallest_limit
from strategy.ilp.solve.conflict import Overfull, overfull_times
from tests.strategy.ilp.problems import random_problem


def test_the_times_that_bind_are_named() -> None:
    held = Node("a", (0, 0), (Usage(10, 20, (60, 50)),))
    problem = Problem("p", (held, replace(held, name="b"), Node("c", (0,), (Usage(15, 30, (20,)),))), (), limit=100)
    assert overfull_times(problem) == (Overfull(15, 20, 120, proved=True),)
    assert overfull_times(replace(problem, limit=99)) == (Overfull(15, 20, 120, True), Overfull(10, 15, 100, True))
    assert overfull_times(replace(problem, limit=120)) == ()
    assert overfull_times(replace(problem, limit=None)) == ()
    assert str(overfull_times(problem)[0]) == "from 15 to 20 at least 120 bytes are held"


def test_times_that_bind_only_together_are_those_of_the_smallest_peak() -> None:
    early, late = Usage(0, 1, (9, 1)), Usage(5, 6, (1, 9))
    problem = Problem("seesaw", (Node("a", (0, 0), (early, late)),), (), limit=5)
    found = overfull_times(problem)
    assert [(span.least, span.proved) for span in found] == [(9, False)]
    equal = (0, 10**18, 10**18, 0)
    tied = Problem("tied", (Node("a", (0, 0), (early,)), Node("b", (0, 0), (late,))), (Edge(0, 1, equal),), limit=5)
    assert [span.least for span in overfull_times(tied)] == [9]


def test_no_named_time_holds_more_than_the_smallest_peak() -> None:
    rng = random.Random(4)
    named = 0
    for _ in range(60):
        problem = random_problem(rng)
        least = smallest_limit(problem)
        if problem.limit is None or least is None or least <= problem.limit:
            continue
        found = overfull_times(problem)
        assert found
        assert problem.limit < found[0].least <= least
        named += 1
    assert named >= 5
