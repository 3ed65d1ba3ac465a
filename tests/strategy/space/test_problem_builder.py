"""Problem builder: one edge between two nodes, the sum of what was added; the same parts make the same table."""

from __future__ import annotations

import numpy as np

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.space.counts import Counts
from strategy.space.problem_builder import IntArray, ProblemBuilder, Table, Weighing, weighed


def test_edges_of_a_pair_are_added_up() -> None:
    builder = ProblemBuilder()
    tail, head = builder.add_node("tail", [1, 2]), builder.add_node("head", [3, 4], [Usage(0, 1, (5, 6))])
    builder.add_usage(tail, Usage(1, 2, (7, 8)))
    builder.add_edge(tail, head, Table(np.array([[1, 2], [3, FORBIDDEN]])))
    builder.add_edge(tail, head, Table(np.array([[10, 20], [FORBIDDEN, FORBIDDEN]])))
    nodes = (Node("tail", (1, 2), (Usage(1, 2, (7, 8)),)), Node("head", (3, 4), (Usage(0, 1, (5, 6)),)))
    edges = (Edge(0, 1, (11, 22, FORBIDDEN, FORBIDDEN)),)
    assert builder.problem("both", 9) == Problem("both", nodes, edges, 9)


def test_an_edge_to_itself_is_part_of_a_node() -> None:
    builder = ProblemBuilder()
    node = builder.add_node("node", [1, 2])
    builder.add_edge(node, node, Table(np.array([[10, 99], [99, FORBIDDEN]])))
    assert builder.problem("one", None) == Problem("one", (Node("node", (11, FORBIDDEN)),), ())


def test_the_same_parts_are_added_up_once() -> None:
    builder = ProblemBuilder()
    nodes = [builder.add_node(name, [0, 0]) for name in "abcd"]
    one, other = Table(np.array([[1, 2], [3, 4]])), Table(np.array([[5, 6], [7, 8]]))
    for tail, head in ((0, 1), (2, 3)):
        builder.add_edge(nodes[tail], nodes[head], one)
        builder.add_edge(nodes[tail], nodes[head], other)
    first, second = builder.problem("pairs", None).edges
    assert first.costs == (6, 8, 10, 12)
    assert second.costs is first.costs


def test_tables_are_told_by_which_they_are() -> None:
    def scaled(array: IntArray, factor: int) -> IntArray:
        return array * factor

    builder, table = ProblemBuilder(), Table(np.array([[1, 2]]))
    twice = builder.once(scaled, table, 2)
    assert twice.numbers.tolist() == [[2, 4]]
    assert builder.once(scaled, table, 2) is twice
    assert builder.once(scaled, table, 3).numbers.tolist() == [[3, 6]]
    assert builder.once(scaled, Table(table.numbers), 2) is not twice


def test_costs_that_are_linear_in_weights() -> None:
    """Under any weights they are what a problem of these costs has; a choice counts what it costs by them."""
    rng = np.random.default_rng(3)
    builder, sizes = ProblemBuilder(), (2, 3, 4)
    costs = [rng.integers(0, 50, (size, 3)) for size in sizes]
    tables = [rng.integers(0, 50, (sizes[i], sizes[j], 3)) for i, j in ((0, 1), (1, 2))]
    tables[0][1, 1] = FORBIDDEN
    wants = np.zeros((2, 3), np.int64)
    wants[0, 2] = FORBIDDEN
    for i, each in enumerate(costs):
        builder.add_node(f"n{i}", each)
    for table, (tail, head) in zip(tables, ((0, 1), (1, 2)), strict=True):
        builder.add_edge(tail, head, Table(table))
    builder.add_edge(0, 1, Table(wants))
    linear = builder.linear("three", 3)
    legal = np.minimum(tables[0] + wants[..., None], FORBIDDEN)
    for weights, shift in ((np.array([1.0, 2.0, 0.5]), 3), (np.array([0.0, 0.25, 3.0]), 20)):
        weighing = Weighing.of(weights, shift, shift)
        problem = linear.at(weighing)
        assert weighing.weights.tolist() == weights.tolist()
        for node, each in zip(problem.nodes, costs, strict=True):
            assert list(node.costs) == np.floor(each @ weights).tolist()
        expected = np.where(legal[..., 0] >= FORBIDDEN, FORBIDDEN, np.floor(legal @ weights))
        assert problem.edges[0].costs == tuple(expected.astype(np.int64).ravel().tolist())
        every = [*(node.costs for node in problem.nodes), *(edge.costs for edge in problem.edges)]
        most = sum(max(cost for cost in each if cost < FORBIDDEN) for each in every)
        assert most <= linear.most(weights) < most + len(every), "but for what was rounded down"
    choice = (0, 1, 3)
    counted = sum(each[pick] for each, pick in zip(costs, choice, strict=True)) + legal[0, 1] + tables[1][1, 3]
    assert linear.counted(choice).tolist() == counted.tolist()


def test_weights_are_rounded_down_to_whole_units() -> None:
    """Costs in coarser units; what they stand for is no more than what was counted."""
    weighing = Weighing.of(np.array([1 / 3, 2.5]), 10, 6)
    assert weighing.units.tolist() == [341, 2560]
    counts = np.array([[300, 7], [1, 1], [FORBIDDEN, FORBIDDEN]])
    costs = weighing.costs(Counts.of([counts], 2))
    assert costs.tolist() == [(300 * 341 + 7 * 2560) >> 6, (341 + 2560) >> 6, FORBIDDEN]
    assert all(
        weighing.total(int(cost)) <= each @ weighing.weights for cost, each in zip(costs[:2], counts, strict=False)
    )


def test_what_is_too_dear_to_be_counted_is_forbidden_and_does_not_wrap_around() -> None:
    """Of a number, and of several at once."""
    assert weighed([0, 3, 2**40], 2**30).tolist() == [0, 3 * 2**30, FORBIDDEN]
    assert weighed(2**62, 4) == FORBIDDEN
    found = weighed([1, 2**50], np.array([2, 2**20]))
    assert found.tolist() == [[2, 2**20], [2**51, FORBIDDEN]]
