"""Packed arrays: where every figure of a small core lies."""

from __future__ import annotations

import numpy as np

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.packed_arrays import FORBIDDEN_FLOAT, LEAST_FORBIDDEN, as_floats, lifetime_rank, pack


def small() -> Problem:
    """Read last, held first: b comes before a; c holds nothing and goes with b, its tail."""
    nodes = (
        Node("a", (10, 11), (Usage(5, 7, (3, 1)),)),
        Node("b", (20, 21, 22), (Usage(0, 6, (4, 9, 4)),)),
        Node("c", (0, 30)),
    )
    return Problem("small", nodes, (Edge(0, 1, (0, 1, 2, 3, 4, FORBIDDEN)), Edge(1, 2, (0, 6, 7, 0, 8, 9))), limit=10)


def test_nodes_are_ordered_by_when_their_memory_is_held() -> None:
    assert lifetime_rank(small()).tolist() == [2, 1, 0]
    held = tuple(
        Node(f"n{i}", (0,), (Usage(begin, end, (1,)),)) for i, (begin, end) in enumerate(((4, 6), (0, 9), (0, 5)))
    )
    assert lifetime_rank(Problem("p", held, ())).tolist() == [2, 1, 0]


def test_every_figure_is_where_the_legend_says() -> None:
    core = build_core(small())
    arrays, nodes = pack(core, np.array([1, 0, 2]))
    assert nodes == (1, 0, 2)
    assert arrays.choice_at.tolist() == [0, 3, 5, 7]
    assert (arrays.cost.tolist(), core.constant) == ([0, 1, 2, 0, 1, 0, 30], 30)
    assert list(zip(arrays.tail.tolist(), arrays.head.tolist(), strict=True)) == [(0, 1), (0, 2)]
    assert arrays.table_at.tolist() == [0, 6, 12]
    assert arrays.table.tolist() == [0, 3, 1, 4, 2, FORBIDDEN, 0, 6, 7, 0, 8, 9]
    assert (arrays.link_at.tolist(), arrays.links.tolist()) == ([0, 2, 3, 4], [0, 1, 0, 1])
    assert (arrays.tail_at.tolist(), arrays.head_at.tolist()) == ([0, 3, 6], [0, 2, 4])
    assert (arrays.span_at.tolist(), arrays.span_first.tolist(), arrays.span_last.tolist()) == (
        [0, 1, 2, 2],
        [0, 0],
        [1, 1],
    )
    assert (arrays.span_start.tolist(), arrays.amount.tolist()) == ([0, 3], [0, 5, 0, 2, 0])
    assert arrays.room.tolist() == [10 - 4 - 1]
    assert all(array.dtype == np.int64 for array in arrays[:-1])


def test_the_working_copy_bars_what_is_forbidden() -> None:
    exact, _ = pack(build_core(small()), np.array([1, 0, 2]))
    working = as_floats(exact)
    assert working.table.tolist()[:6] == [0, 3, 1, 4, 2, FORBIDDEN_FLOAT]
    assert {working.cost.dtype, working.table.dtype, working.amount.dtype, working.room.dtype} == {np.dtype(np.float64)}
    assert 2 * FORBIDDEN_FLOAT > LEAST_FORBIDDEN > 10**18
