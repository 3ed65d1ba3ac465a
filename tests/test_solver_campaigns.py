"""A seeded part of the solver's campaigns: `python -m tests.campaigns solver|copies|joined|repeat`."""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from dataclasses import replace

import pytest

from strategy.ilp.problem import Edge, Node, Problem, Usage
from strategy.ilp.solve import brute_force, smallest_limit
from strategy.ilp.solve.conflict import Overfull, overfull_times
from tests.campaigns import repeat, solver
from tests.campaigns.copies import copied
from tests.campaigns.joined import joined
from tests.strategy.ilp.problems import random_problem


def test_the_solver_agrees_with_every_choice_listed() -> None:
    outcome = solver.run(60, seed=9000)
    assert outcome.failures == []
    assert outcome.coverage["infeasible"] >= 6


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


def test_a_look_at_memory_can_be_interrupted_and_leaves_signals_alone() -> None:
    """Bins that cannot be packed: CP-SAT does not end by itself in any time that a test has."""
    rng = random.Random(2)
    nodes = []
    for i in range(60):
        size = rng.randrange(10**6, 2 * 10**6)
        bins = [Usage(time, time + 1, tuple(size * (pick == time) for pick in range(7))) for time in range(7)]
        nodes.append(Node(f"n{i}", (0,) * 7, tuple(bins)))
    problem = Problem("bins", tuple(nodes), ())
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(2.0, signal.pthread_kill, [main, signal.SIGINT]).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        smallest_limit(problem, time_limit_s=100.0)
    assert time.monotonic() - start < 20.0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
