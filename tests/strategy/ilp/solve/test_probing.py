"""Strong branching: the node whose choices raise the bound most, and its children."""

from __future__ import annotations

import itertools
import random

import numpy as np

from strategy.ilp.problem import Edge, Node, Problem
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.dual_ascent import start_dual_ascent
from strategy.ilp.solve.message_bound import certify_messages
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.probing import choose_branching
from strategy.ilp.solve.relaxation import relax


def branching_of(problem: Problem) -> tuple[int, list[list[int]]]:
    core = build_core(problem)
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(core.room.size))
    ascent.ascend(30)
    found = certify_messages(relaxation, ascent)
    spent: list[int] = []
    node, choices = choose_branching(relaxation.relaxed, ascent, found, 5.0, spent.append)
    assert min(spent) > 0
    return node, [kept.tolist() for kept in choices]


def triangle(first: Node) -> Problem:
    """Neighbours want to differ, which the second, third and fourth cannot do all at once; the first is beside."""
    edges = [Edge(i, j, (5, 0, 0, 5)) for i, j in itertools.combinations((1, 2, 3), 2)]
    edges.append(Edge(0, 1, (0,) * (2 * len(first.costs))))
    return Problem("triangle", (first, *(Node(f"n{i}", (0, 0)) for i in range(3))), tuple(edges))


def test_the_node_that_raises_the_bound_is_branched_on() -> None:
    node, children = branching_of(triangle(Node("free", (0, 0))))
    assert node in (1, 2, 3)
    assert sorted(children) == [[0], [1]]


def test_a_node_with_a_single_choice_is_not_branched_on() -> None:
    node, children = branching_of(triangle(Node("single", (0,))))
    assert node in (1, 2, 3)
    assert sorted(children) == [[0], [1]]


def test_many_choices_become_children_of_one_and_a_rest() -> None:
    rng = random.Random(5)
    wide = tuple(rng.randrange(3) for _ in range(20))
    table = tuple(rng.randrange(9) for _ in range(400))
    nodes = tuple(Node(f"n{i}", wide) for i in range(3))
    problem = Problem("wide", nodes, tuple(Edge(i, j, table) for i, j in ((0, 1), (1, 2), (0, 2))))
    _, children = branching_of(problem)
    assert [len(kept) for kept in children] == [1] * 11 + [9]
    assert sorted(itertools.chain.from_iterable(children)) == list(range(20))
