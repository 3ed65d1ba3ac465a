"""A node of the tree: its bound is the best of its own and the least of its children."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strategy.ilp.certificate.proof import Branch, Empty, MessageBound, Proof
from strategy.ilp.problem import Node, Problem, Usage
from strategy.ilp.solve.branch_node import BranchNode
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import certify_constant


def node_of(costs: tuple[int, ...]) -> BranchNode:
    core = build_core(Problem("p", (Node("a", costs),), ()))
    return BranchNode(core, core.constant, np.zeros(0))


def test_a_node_begins_with_the_constant_of_its_core() -> None:
    node = node_of((7, 9))
    assert (node.bound, node.proved_bound()) == (7, 7)
    assert isinstance(node.end, MessageBound)
    assert node.proof() == Proof((), node.end)


def test_a_worse_bound_is_not_taken() -> None:
    node = node_of((7, 9))
    assert node.core is not None
    worse, better = certify_constant(node.core), certify_constant(node.core)
    node.raise_bound(replace(worse, lower_bound=5))
    assert node.bound == 7
    node.raise_bound(replace(better, lower_bound=8))
    assert (node.bound, node.end) == (8, better.proof)


def test_the_least_of_the_children_counts_where_it_is_more() -> None:
    node, one, other = node_of((7, 9)), node_of((7,)), node_of((9,))
    node.branching_node, node.branching_choices = 0, (np.array([0]), np.array([1]))
    node.children = [one, other]
    one.bound, other.bound = 12, 10
    assert node.proved_bound() == 10
    end = node.proof().end
    assert isinstance(end, Branch)
    assert (end.node, len(end.parts)) == (0, 2)
    node.bound = 11
    assert node.proved_bound() == 11
    assert node.proof().end is node.end


def test_children_in_which_nothing_is_left_do_not_count() -> None:
    node, one, other = node_of((7, 9)), node_of((7,)), node_of((9,))
    node.children = [one, other]
    one.close_as_empty()
    other.bound = 10
    assert one.core is None
    assert isinstance(one.proof().end, Empty)
    assert node.proved_bound() == 10
    other.close_as_empty()
    assert node.proved_bound() is None


def test_prices_follow_the_rows_that_are_kept() -> None:
    usages = tuple(Usage(2 * i, 2 * i + 1, (4 + i, 0)) for i in range(3))
    core = build_core(Problem("p", (Node("a", (0, 1), usages), Node("b", (0, 1), usages)), (), limit=5))
    node = BranchNode(core, core.constant, np.array([1.0, 2.0, 3.0]))
    mark = len(node.steps)
    core.keep_rows(np.array([True, False, True]))
    node.keep_prices(mark)
    assert node.prices.tolist() == [1.0, 3.0]
