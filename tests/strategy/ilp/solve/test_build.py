"""From a problem to its core: edges merged, loops folded, the rows that can bind."""

from __future__ import annotations

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import InputError, OutOfTimeError
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import solve
from strategy.ilp.solve.build import build_core


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem("p", (Node("a", ()),), ()), "no choices"),
        (Problem("p", (Node("a", (1,), (Usage(0, 1, (1, 2)),)),), ()), "memory does not fit"),
        (Problem("p", (Node("a", (1,), (Usage(0, 1, (-1,)),)),), ()), "memory does not fit"),
        (Problem("p", (Node("a", (1,)),), (Edge(0, 1, (1,)),)), "unknown node"),
        (Problem("p", (Node("a", (1,)),), (Edge(0, 0, (1, 2)),)), "wrong size"),
        (Problem("p", (Node("a", (10**17 + 1,)),), ()), "too large"),
        (Problem("p", (Node("a", (1,)),), (), limit=-1), "negative memory limit"),
    ],
)
def test_a_malformed_problem_is_refused(problem: Problem, words: str) -> None:
    with pytest.raises(InputError, match=words):
        solve(problem)


def test_parallel_edges_add_up_and_loops_are_costs() -> None:
    edges = (Edge(0, 1, (1, 2, 3, 4)), Edge(1, 0, (10, 20, 30, FORBIDDEN)), Edge(0, 0, (5, 99, 99, 6)))
    core = build_core(Problem("p", (Node("a", (0, 0)), Node("b", (0, 1))), edges))
    assert core.tables[0][1].tolist() == [[11, 32], [23, FORBIDDEN]]
    assert core.tables[1][0].tolist() == core.tables[0][1].T.tolist()
    assert ({node: cost.tolist() for node, cost in core.costs.items()}, core.constant) == ({0: [0, 1], 1: [0, 1]}, 5)


def test_rows_are_the_times_at_which_the_limit_can_bind() -> None:
    """Both are held from 1 to 2 only; before and after, 7 and 8 bytes at most fit into 10."""
    nodes = (Node("a", (0, 0), (Usage(0, 2, (7, 2)),)), Node("b", (0, 0), (Usage(1, 3, (8, 3)),)))
    core = build_core(Problem("p", nodes, (), limit=10))
    assert core.room.tolist() == [10 - 2 - 3]
    assert {node: {rows: held.tolist() for rows, held in spans.items()} for node, spans in core.spans.items()} == {
        0: {(0, 1): [5, 0]},
        1: {(0, 1): [5, 0]},
    }
    assert build_core(Problem("p", nodes, (), limit=15)).room.size == 0


def test_reading_ends_with_the_time() -> None:
    problem = Problem("p", (Node("a", (0, 0)), Node("b", (0, 0))), (Edge(0, 1, (0, 1, 2, 3)),))
    with pytest.raises(OutOfTimeError):
        build_core(problem, budget=Budget.of(0.0))
