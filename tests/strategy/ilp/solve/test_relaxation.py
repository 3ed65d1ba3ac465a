"""Relaxation: the arrays with joins, and the way back to those without."""

from __future__ import annotations

import random

import numpy as np

from strategy.ilp.problem import Edge, Node, Problem
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.evaluate import cost_of
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import relax
from tests.strategy.ilp.solve.oracle import shared_copies


def test_what_is_joined_away_follows_from_the_rest() -> None:
    rng = random.Random(4)
    for _ in range(20):
        problem = shared_copies(rng, values=5)
        core = build_core(problem)
        relaxation = relax(core, lifetime_rank(problem))
        assert relaxation.joined_away.size == sum(len(join.nodes) for join in relaxation.joins) > 0
        picks = np.array([rng.randrange(core.costs[node].size) for node in relaxation.relaxed.nodes], np.int64)
        full = relaxation.complete(picks)
        assert (full[relaxation.kept] == picks).all()
        assert cost_of(relaxation.full.arrays, full) == cost_of(relaxation.relaxed.arrays, picks)


def test_without_joins_both_views_are_one() -> None:
    problem = Problem("p", (Node("a", (0, 3)), Node("b", (0, 1))), (Edge(0, 1, (4, 0, 0, 9)),))
    relaxation = relax(build_core(problem), lifetime_rank(problem))
    assert relaxation.full is relaxation.relaxed
    assert relaxation.joins == ()
    assert (relaxation.kept.tolist(), relaxation.joined_away.tolist()) == ([0, 1], [])
    assert relaxation.complete(np.array([1, 0])).tolist() == [1, 0]


def test_a_copy_of_three_readers_is_joined_away() -> None:
    """Node 3 costs least where it takes what its three neighbours want of it."""
    wants = tuple(Edge(i, 3, (0, 7, 7, 0)) for i in range(3))
    problem = Problem("copy", tuple(Node(f"n{i}", (0, 0)) for i in range(4)), wants)
    relaxation = relax(build_core(problem), lifetime_rank(problem))
    assert [join.scope for join in relaxation.joins] == [(0, 1, 2)]
    assert relaxation.relaxed.nodes == (0, 1, 2)
    assert relaxation.complete(np.array([0, 0, 1])).tolist() == [0, 0, 1, 0]
    assert relaxation.complete(np.array([1, 0, 1])).tolist() == [1, 0, 1, 1]
