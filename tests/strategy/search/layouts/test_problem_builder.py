"""Drafts: between two nodes there is one edge, the sum of what was added; the same parts make the same table."""

from __future__ import annotations

import numpy as np

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.search.layouts.problem_builder import Draft, IntArray


def test_edges_of_a_pair_are_added_up() -> None:
    draft = Draft()
    tail, head = draft.add_node("tail", [1, 2]), draft.add_node("head", [3, 4], [Usage(0, 1, (5, 6))])
    draft.add_usage(tail, Usage(1, 2, (7, 8)))
    draft.add_edge(tail, head, np.array([[1, 2], [3, FORBIDDEN]]))
    draft.add_edge(tail, head, np.array([[10, 20], [FORBIDDEN, FORBIDDEN]]))
    nodes = (Node("tail", (1, 2), (Usage(1, 2, (7, 8)),)), Node("head", (3, 4), (Usage(0, 1, (5, 6)),)))
    edges = (Edge(0, 1, (11, 22, FORBIDDEN, FORBIDDEN)),)
    assert draft.problem("both", 9) == Problem("both", nodes, edges, 9)


def test_an_edge_to_itself_is_part_of_a_node() -> None:
    draft = Draft()
    node = draft.add_node("node", [1, 2])
    draft.add_edge(node, node, np.array([[10, 99], [99, FORBIDDEN]]))
    assert draft.problem("one", None) == Problem("one", (Node("node", (11, FORBIDDEN)),), ())


def test_the_same_parts_are_added_up_once() -> None:
    draft = Draft()
    nodes = [draft.add_node(name, [0, 0]) for name in "abcd"]
    one, other = np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, 8]])
    for tail, head in ((0, 1), (2, 3)):
        draft.add_edge(nodes[tail], nodes[head], one)
        draft.add_edge(nodes[tail], nodes[head], other)
    first, second = draft.problem("pairs", None).edges
    assert first.costs == (6, 8, 10, 12)
    assert second.costs is first.costs


def test_tables_are_told_by_their_arrays_and_numbers() -> None:
    def scaled(array: IntArray, factor: int) -> IntArray:
        return array * factor

    draft, array = Draft(), np.array([[1, 2]])
    twice = draft.once(scaled, array, 2)
    assert twice.tolist() == [[2, 4]]
    assert draft.once(scaled, array, 2) is twice
    assert draft.once(scaled, array, 3).tolist() == [[3, 6]]
    assert draft.once(scaled, array.copy(), 2) is not twice
