"""Repair and coordinate descent: a choice becomes legal, then cheaper, and stays legal."""

from __future__ import annotations

import random

import numpy as np

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, evaluate
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.descent import conditional_costs, descend, minimise_conditionally, repair
from strategy.ilp.solve.evaluate import cost_of, fits
from strategy.ilp.solve.forest import optimise_forest, random_region
from strategy.ilp.solve.packed_arrays import LEAST_FORBIDDEN, lifetime_rank
from strategy.ilp.solve.relaxation import PackedCore, pack_core
from tests.strategy.ilp.solve.oracle import DILEMMA, feasible_cases


def test_repair_descent_and_forests_keep_choices_legal() -> None:
    rng = random.Random(45)
    repaired = improved = 0
    for case, (problem, core, oracle) in enumerate(feasible_cases(45, 150)):
        packed = pack_core(core, lifetime_rank(problem))
        arrays, nodes = packed.arrays, packed.nodes
        if not nodes:
            continue
        picks = np.array([rng.randrange(core.costs[node].size) for node in nodes], np.int64)
        if repair(arrays, arrays.cost, picks, 1.0, 60, case) < 0:
            continue
        repaired += 1
        before = cost_of(arrays, picks)
        descend(arrays, picks, 30, case)
        assert fits(arrays, picks)
        assert cost_of(arrays, picks) <= before
        full = core.lift(dict(zip(nodes, picks.tolist(), strict=True)))
        value = evaluate(problem, [full[node] for node in range(len(problem.nodes))])
        assert oracle[0] <= value.cost < FORBIDDEN
        assert problem.limit is None or value.peak <= problem.limit
        assert value.cost == cost_of(arrays, picks) + core.constant or value.cost > 2**50
        moved = picks.copy()
        optimise_forest(arrays, arrays.cost, moved, random_region(arrays, len(nodes), case))
        assert cost_of(arrays, moved) <= min(cost_of(arrays, picks), LEAST_FORBIDDEN)
        improved += cost_of(arrays, moved) < cost_of(arrays, picks)
    assert repaired >= 100
    assert improved >= 5


def pair() -> PackedCore:
    """Costs (0, 3) and (0, 1), a table of 4 where both take 0 and a forbidden pair where both take 1."""
    problem = Problem("p", (Node("a", (0, 3)), Node("b", (0, 1))), (Edge(0, 1, (4, 0, 0, FORBIDDEN)),))
    return pack_core(build_core(problem), lifetime_rank(problem))


def test_conditional_costs_are_those_beside_the_others_picks() -> None:
    arrays = pair().arrays
    line = np.empty(2)
    conditional_costs(arrays, arrays.cost, 0, np.array([0, 0]), line, 100.0)
    assert line.tolist() == [4.0, 3.0]
    conditional_costs(arrays, arrays.cost, 0, np.array([0, 1]), line, 100.0)
    assert line.tolist() == [0.0, 103.0]
    conditional_costs(arrays, arrays.cost, 1, np.array([1, 0]), line, 100.0)
    assert line.tolist() == [0.0, 101.0]


def test_a_conditional_minimum_moves_only_the_nodes_that_are_named() -> None:
    arrays, picks = pair().arrays, np.array([0, 0])
    minimise_conditionally(arrays, np.array([1]), picks)
    assert picks.tolist() == [0, 1]


def test_descent_ends_where_no_single_move_is_cheaper() -> None:
    arrays, picks = pair().arrays, np.array([0, 0])
    sweeps = descend(arrays, picks, 10, 0)
    assert sweeps <= 3
    assert (picks.tolist(), cost_of(arrays, picks)) in (([0, 1], 1.0), ([1, 0], 3.0))


def test_repair_gives_up_what_does_not_fit() -> None:
    packed = pack_core(build_core(DILEMMA), lifetime_rank(DILEMMA))
    picks = np.array([0])
    assert not fits(packed.arrays, picks)
    assert repair(packed.arrays, packed.arrays.cost, picks, 1.0, 60, 0) > 0
    assert picks.tolist() == [1]
    assert fits(packed.arrays, picks)
