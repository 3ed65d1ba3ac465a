"""TRW-S messages: exact on trees, a bound that no sweep lowers, and memory at its price."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from strategy.ilp.problem import Edge, Node, Problem, Usage, evaluate
from strategy.ilp.solve import brute_force
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import pack_core, relax
from strategy.ilp.solve.trws import price_memory, sweep_work, trws_sweep, zero_messages

sweep = trws_sweep.interpreted
"""The loop for arguments from Python would be compiled for these few nodes alone."""


def swept(problem: Problem, sweeps: int) -> tuple[list[float], list[int]]:
    """The bounds of backward sweeps, and the last choice decoded."""
    core = build_core(problem)
    arrays = pack_core(core, lifetime_rank(problem)).arrays
    messages, picks = zero_messages(arrays), np.zeros(len(problem.nodes), np.int64)
    work = sweep_work.interpreted(arrays)
    bounds = []
    for _ in range(sweeps):
        sweep(arrays, arrays.cost, messages, True, picks, work)
        bounds.append(sweep(arrays, arrays.cost, messages, False, picks, work) + core.constant)
    return bounds, picks.tolist()


def test_a_chain_is_solved_by_one_sweep_each_way() -> None:
    nodes = (Node("a", (0, 5)), Node("b", (0, 1)), Node("c", (2, 0)))
    chain = Problem("chain", nodes, (Edge(0, 1, (7, 0, 1, 1)), Edge(1, 2, (0, 4, 3, 0))))
    assert swept(chain, 1) == ([1.0], [0, 1, 1])


def test_trees_are_solved_exactly() -> None:
    rng = random.Random(6)
    for _ in range(20):
        nodes = tuple(Node(f"n{i}", tuple(rng.randrange(20) for _ in range(3))) for i in range(6))
        edges = tuple(Edge(rng.randrange(i), i, tuple(rng.randrange(20) for _ in range(9))) for i in range(1, 6))
        problem = Problem("tree", nodes, edges)
        oracle = brute_force(problem)
        assert oracle is not None
        bounds, picks = swept(problem, 3)
        assert bounds[-1] == pytest.approx(oracle[0], abs=1e-9)
        assert evaluate(problem, picks).cost == oracle[0]


def test_no_sweep_lowers_the_bound() -> None:
    rng = random.Random(7)
    for _ in range(10):
        nodes = tuple(Node(f"n{i}", tuple(rng.randrange(9) for _ in range(3))) for i in range(5))
        edges = tuple(
            Edge(i, j, tuple(rng.randrange(20) for _ in range(9))) for i, j in itertools.combinations(range(5), 2)
        )
        problem = Problem("clique", nodes, edges)
        oracle = brute_force(problem)
        bounds, _ = swept(problem, 8)
        assert oracle is not None
        assert all(after >= before - 1e-9 for before, after in itertools.pairwise(bounds))
        assert bounds[-1] <= oracle[0] + 1e-9


def test_messages_through_joins_are_exact_where_they_are_a_tree() -> None:
    """Three readers of one copy, which is joined away: one table over all three."""
    wants = tuple(Edge(i, 3, (0, 7, 5, 0)) for i in range(3))
    nodes = (Node("a", (0, 4)), Node("b", (3, 0)), Node("c", (0, 2)), Node("copy", (1, 0)))
    problem = Problem("copy", nodes, wants)
    core = build_core(problem)
    relaxed = relax(core, lifetime_rank(problem)).relaxed
    messages, picks = zero_messages(relaxed.arrays), np.zeros(3, np.int64)
    work = sweep_work.interpreted(relaxed.arrays)
    for _ in range(5):
        sweep(relaxed.arrays, relaxed.arrays.cost, messages, True, picks, work)
        bound = sweep(relaxed.arrays, relaxed.arrays.cost, messages, False, picks, work) + core.constant
    oracle = brute_force(problem)
    assert oracle is not None
    assert relaxed.arrays.joins.table_at.size == 1
    assert bound == pytest.approx(oracle[0])
    assert picks.tolist() == list(oracle[1][:3])


def test_memory_is_priced_by_the_rows_that_it_spans() -> None:
    nodes = (Node("a", (0, 1), (Usage(0, 4, (7, 2)),)), Node("b", (0, 0), (Usage(0, 2, (9, 0)), Usage(2, 4, (0, 9)))))
    core = build_core(Problem("p", nodes, (), limit=10))
    arrays = pack_core(core, np.arange(2)).arrays
    assert arrays.room.size == 2
    priced = np.empty(4)
    price_memory(arrays, np.array([2.0, 10.0]), priced)
    assert priced.tolist() == [0 + 5 * (2 + 10), 1, 9 * 2, 9 * 10]
