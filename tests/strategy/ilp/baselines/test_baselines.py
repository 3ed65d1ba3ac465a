"""What others do: always legal or nothing, and optimal where their papers prove it."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from strategy.base.budget import Budget
from strategy.ilp.baselines import BASELINES, coordinate_descent, elimination, greedy, integer_program, mcmc
from strategy.ilp.check import check_solution
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage, evaluate
from strategy.ilp.solve import brute_force
from tests.strategy.ilp.problems import random_problem

LIMIT_S = 20.0


def _cost(problem: Problem, choice: tuple[int, ...] | None) -> int:
    assert choice is not None
    cost = evaluate(problem, choice).cost
    assert check_solution(problem, choice, cost) == []
    return cost


def _optimum(problem: Problem) -> int:
    found = brute_force(problem)
    assert found is not None
    return found[0]


def _joined(rng: random.Random, count: int, pairs: list[tuple[int, int]], *, forbidden: float = 0.0) -> Problem:
    """Nodes of two to four choices, with an edge for every pair."""
    nodes = [Node(f"n{i}", tuple(rng.randrange(100) for _ in range(rng.randrange(2, 5)))) for i in range(count)]
    edges = []
    for tail, head in pairs:
        cells = len(nodes[tail].costs) * len(nodes[head].costs)
        costs = tuple(FORBIDDEN if rng.random() < forbidden else rng.randrange(100) for _ in range(cells))
        edges.append(Edge(tail, head, costs))
    return Problem("joined", tuple(nodes), tuple(edges))


def _series_parallel(rng: random.Random) -> tuple[int, list[tuple[int, int]]]:
    """An edge, of which edges are doubled, cut in two, or given a dangling end, ten times at random."""
    count, pairs = 2, [(0, 1)]
    for _ in range(10):
        tail, head = pairs.pop(rng.randrange(len(pairs)))
        kind = rng.randrange(3)
        if kind == 0 or count == 8:
            pairs += [(tail, head), (head, tail)]
        elif kind == 1:
            pairs += [(tail, count), (count, head)]
            count += 1
        else:
            pairs += [(tail, head), (count, tail)]
            count += 1
    return count, pairs


@pytest.mark.parametrize("name", BASELINES)
def test_an_answer_is_legal_or_none(name: str) -> None:
    rng = random.Random(3)
    seen: Counter[str] = Counter()
    for _ in range(60):
        problem = random_problem(rng)
        oracle = brute_force(problem)
        found = BASELINES[name](problem, Budget.of(0.05 if name == "mcmc" else LIMIT_S))
        if found.choice is None:
            seen["nothing"] += 1
            continue
        assert oracle is not None
        assert _cost(problem, found.choice) >= oracle[0]
        seen["a choice"] += 1
    assert seen["a choice"] >= 25
    assert seen["nothing"] >= 5


@pytest.mark.parametrize("name", BASELINES)
def test_no_time_and_no_nodes_are_survived(name: str) -> None:
    assert BASELINES[name](Problem("none", (), ()), Budget.of(1.0)).choice in ((), None)
    problem = _joined(random.Random(1), 3, [(0, 1), (1, 2)])
    found = BASELINES[name](problem, Budget.of(0.0))
    assert found.choice is None or len(found.choice) == 3


def test_greedy_is_exact_where_later_nodes_follow_for_nothing() -> None:
    rng = random.Random(5)
    for _ in range(40):
        count = rng.randrange(2, 7)
        sizes = [rng.randrange(1, 5) for _ in range(count)]
        first = Node("n0", tuple(rng.randrange(50) for _ in range(sizes[0])))
        nodes = (first, *(Node(f"n{i}", (0,) * size) for i, size in enumerate(sizes) if i))
        edges = []
        for i in range(1, count):
            rows = [[rng.randrange(1, 50) for _ in range(sizes[i])] for _ in range(sizes[i - 1])]
            for row in rows:
                row[rng.randrange(sizes[i])] = 0
            edges.append(Edge(i - 1, i, tuple(cell for row in rows for cell in row)))
        problem = Problem("chain", nodes, tuple(edges))
        assert _cost(problem, greedy(problem, Budget.of(LIMIT_S)).choice) == _optimum(problem)


def test_greedy_sees_nothing_of_what_follows() -> None:
    problem = Problem("trap", (Node("a", (0, 1)), Node("b", (0,))), (Edge(0, 1, (9, 0)),))
    assert greedy(problem, Budget.of(LIMIT_S)).choice == (0, 0)
    assert _optimum(problem) == 1


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
def test_elimination_is_exact_on_series_parallel_graphs_without_memory(forbidden: float) -> None:
    rng = random.Random(7)
    solved = 0
    for _ in range(60):
        problem = _joined(rng, *_series_parallel(rng), forbidden=forbidden)
        oracle = brute_force(problem)
        found = elimination(problem, Budget.of(LIMIT_S))
        assert (found.choice is None) == (oracle is None)
        if oracle is not None:
            assert _cost(problem, found.choice) == oracle[0]
            solved += 1
    assert solved >= 20


def test_elimination_solves_four_nodes_that_cannot_be_eliminated() -> None:
    rng = random.Random(9)
    for _ in range(30):
        problem = _joined(rng, 4, list(itertools.combinations(range(4), 2)))
        assert _cost(problem, elimination(problem, Budget.of(LIMIT_S)).choice) == _optimum(problem)


def test_elimination_merges_and_charges_for_memory() -> None:
    rng = random.Random(11)
    exact = 0
    for _ in range(20):
        problem = _joined(rng, 6, list(itertools.combinations(range(6), 2)), forbidden=0.05)
        exact += _cost(problem, elimination(problem, Budget.of(LIMIT_S)).choice) == _optimum(problem)
    assert exact >= 15
    held = (Usage(0, 1, (8, 1)),)
    tight = Problem("tight", (Node("a", (0, 5), held), Node("b", (0, 4), held)), (Edge(0, 1, (0,) * 4),), limit=9)
    assert _cost(tight, elimination(tight, Budget.of(LIMIT_S)).choice) in (4, 5)


def test_the_integer_program_has_the_optimum_of_small_problems() -> None:
    rng = random.Random(13)
    solved = 0
    for _ in range(60):
        problem = random_problem(rng)
        oracle = brute_force(problem)
        found = integer_program(problem, Budget.of(LIMIT_S))
        assert (found.choice is None) == (oracle is None)
        if oracle is not None:
            assert found.bound is not None
            assert abs(_cost(problem, found.choice) - oracle[0]) <= 1e-6 * oracle[0] + 1
            assert found.bound <= oracle[0] * (1 + 1e-6) + 1
            solved += 1
    assert solved >= 25


def test_coordinate_descent_ends_in_a_local_optimum() -> None:
    rng = random.Random(15)
    checked = 0
    for _ in range(60):
        problem = random_problem(rng)
        choice = coordinate_descent(problem, Budget.of(LIMIT_S)).choice
        if choice is None:
            continue
        cost = _cost(problem, choice)
        for node, costs in enumerate(problem.nodes):
            for other in range(len(costs.costs)):
                value = evaluate(problem, [*choice[:node], other, *choice[node + 1 :]])
                fits = problem.limit is None or value.peak <= problem.limit
                assert not (fits and value.cost < cost)
                checked += 1
    assert checked >= 300


def test_the_chain_finds_the_optimum_of_tiny_problems_given_enough_samples() -> None:
    rng = random.Random(17)
    for _ in range(20):
        problem = _joined(rng, 5, list(itertools.combinations(range(5), 2)))
        found = mcmc(problem, Budget.of(LIMIT_S), temperature=0.05, samples=3000)
        assert _cost(problem, found.choice) == _optimum(problem)


def test_the_chain_accepts_as_metropolis_and_hastings_say() -> None:
    """One node of two choices, a step apart: a cold chain never climbs out of the start, a hot one does."""
    problem = Problem("hill", (Node("a", (10, 12, 3)), Node("b", (0, 0))), (Edge(0, 1, (0, 9, 9, 0, 9, 0)),))
    start = greedy(problem, Budget.of(LIMIT_S)).choice
    assert start == (2, 1)
    assert mcmc(problem, Budget.of(LIMIT_S), samples=50).choice == mcmc(problem, Budget.of(LIMIT_S), samples=50).choice
    assert mcmc(problem, Budget.of(LIMIT_S), samples=0).choice == start
    valley = Problem("valley", (Node("a", (0, 1)), Node("b", (0, 0))), (Edge(0, 1, (5, 6, 7, 0)),))
    assert mcmc(valley, Budget.of(LIMIT_S), temperature=1e-3, samples=300).choice == (0, 0)
    assert mcmc(valley, Budget.of(LIMIT_S), temperature=2.0, samples=300).choice == (1, 1)
