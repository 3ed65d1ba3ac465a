"""Memory alone: the second opinion, and the smallest limit."""

from __future__ import annotations

import random
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from strategy.base.budget import Budget
from strategy.base.interruption import raised_again
from strategy.base.status import Status
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import brute_force, memory_feasibility, smallest_limit, solve
from strategy.ilp.solve.brute_force import brute_force_peak
from strategy.ilp.solve.memory_feasibility import find_legal, least_peak
from tests.strategy.ilp.problems import random_problem


def test_the_smallest_limit_is_exact_and_tight() -> None:
    rng = random.Random(31)
    asked = impossible = 0
    for _ in range(100):
        problem = random_problem(rng)
        expected = brute_force_peak(problem)
        found = smallest_limit(problem)
        assert found == expected
        impossible += expected is None
        if found is not None:
            asked += 1
            assert solve(replace(problem, limit=found)).status is Status.OPTIMAL
            if found > 0:
                assert solve(replace(problem, limit=found - 1)).status is Status.INFEASIBLE
    assert asked >= 40
    assert impossible >= 5


def test_find_legal_agrees_with_the_oracle() -> None:
    rng = random.Random(37)
    for _ in range(60):
        problem = random_problem(rng)
        answer = find_legal(problem)
        assert answer.infeasible == (brute_force(problem) is None)


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
    with raised_again(), pytest.raises(KeyboardInterrupt):  # it may come inside a callback of the garbage collector
        smallest_limit(problem, budget=Budget.of(100.0))
    assert time.monotonic() - start < 20.0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


class _LateSolver:
    """Is asked to stop before it has begun, and hears only what is said afterwards."""

    def __init__(self) -> None:
        self.parameters = SimpleNamespace()
        self.asked, self.begun, self.stopped = threading.Event(), threading.Event(), threading.Event()

    def solve(self, model: object) -> bool:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert self.asked.wait(20.0)
        self.begun.set()
        return self.stopped.wait(20.0)

    def stop_search(self) -> None:
        self.asked.set()
        if self.begun.is_set():
            self.stopped.set()


def test_an_interruption_before_the_search_begins_ends_it_too() -> None:
    solver = _LateSolver()
    with raised_again(), pytest.raises(KeyboardInterrupt):
        memory_feasibility._interruptible(solver, None)
    assert solver.stopped.is_set()


def test_the_choice_of_the_smallest_peak_comes_with_its_proof() -> None:
    problem = Problem("p", (Node("a", (0, 10), (Usage(0, 2, (5, 2)),)), Node("b", (0,), (Usage(1, 3, (4,)),))), ())
    answer = least_peak(problem)
    assert (answer.infeasible, answer.choice, answer.peak_bound) == (False, (1, 0), 6)
    assert smallest_limit(problem) == 6


def test_an_odd_cycle_has_no_colouring() -> None:
    unequal = (FORBIDDEN, 0, 0, FORBIDDEN)
    edges = tuple(Edge(i, (i + 1) % 5, unequal) for i in range(5))
    problem = Problem("odd cycle", tuple(Node(f"n{i}", (1, 2)) for i in range(5)), edges)
    assert find_legal(problem).infeasible
    assert smallest_limit(problem) is None
    assert solve(problem).status is Status.INFEASIBLE
