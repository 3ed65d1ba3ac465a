"""Forest moves: the exact best over an induced forest, and where it lies."""

from __future__ import annotations

import numpy as np

from strategy.ilp.problem import Edge, Node, Problem
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.evaluate import cost_of
from strategy.ilp.solve.forest import optimise_forest, random_region
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import PackedCore, pack_core


def chain(length: int, *, closed: bool = False) -> PackedCore:
    """Equal neighbours are free; at the ends 0 and 1 are wanted; all at 0 is a local minimum of single moves."""
    nodes = [Node(f"n{i}", (0, 0)) for i in range(length)]
    nodes[-1] = Node("last", (9, 0))
    edges = [Edge(i, i + 1, (0, 4, 4, 0)) for i in range(length - 1)]
    edges += [Edge(length - 1, 0, (0, 4, 4, 0))] if closed else []
    problem = Problem("chain", tuple(nodes), tuple(edges))
    return pack_core(build_core(problem), lifetime_rank(problem))


def test_a_tree_is_moved_to_its_optimum_at_once() -> None:
    arrays, picks = chain(7).arrays, np.zeros(7, np.int64)
    optimise_forest(arrays, arrays.cost, picks, np.arange(7))
    assert (picks.tolist(), cost_of(arrays, picks)) == ([1] * 7, 0.0)


def test_who_is_no_candidate_stays() -> None:
    arrays, picks = chain(5).arrays, np.zeros(5, np.int64)
    optimise_forest(arrays, arrays.cost, picks, np.array([3, 4]))
    assert (picks[:3].tolist(), picks[4], cost_of(arrays, picks)) == ([0, 0, 0], 1, 4.0)


def test_who_would_close_a_cycle_stays() -> None:
    arrays, picks = chain(5, closed=True).arrays, np.zeros(5, np.int64)
    optimise_forest(arrays, arrays.cost, picks, np.array([4, 3, 2, 1, 0]))
    assert (picks[0], picks[4], cost_of(arrays, picks)) == (0, 1, 8.0)
    picks[:] = 0
    optimise_forest(arrays, arrays.cost, picks, np.arange(5))
    assert (picks.tolist(), cost_of(arrays, picks)) == ([0] * 5, 9.0)


def test_a_region_is_connected_and_as_large_as_asked() -> None:
    arrays = chain(30).arrays
    for seed in range(5):
        region = sorted(random_region(arrays, 6, seed).tolist())
        assert len(set(region)) == 6
        assert region == list(range(region[0], region[0] + 6))
    assert sorted(random_region(arrays, 30, 0).tolist()) == list(range(30))
