"""Restriction: a problem with fewer choices. Its answers are choices of the whole problem, and quickly found.

What a person would choose is a few of the choices that there are; the best of them lies close to the best of all. From
there most other choices are told to be worse by their bounds alone, which is how the whole problem is solved at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Restriction:
    """The problem that is left; `kept[i]` are the choices of node i that are, by their indices in the whole."""

    problem: Problem
    kept: tuple[tuple[int, ...], ...]

    def choice(self, picks: Sequence[int]) -> tuple[int, ...]:
        """The choice of the whole problem that an answer of the restricted one stands for."""
        return tuple(few[pick] for few, pick in zip(self.kept, picks, strict=True))


def restrict(problem: Problem, few: Sequence[Sequence[int]]) -> Restriction:
    """Leave each of the first nodes the choices `few[i]`, ascending, and the others what goes with some of these."""
    kept = (*(tuple(choices) for choices in few), *_others(problem, few))
    nodes = tuple(_node(node, choices) for node, choices in zip(problem.nodes, kept, strict=True))
    edges = tuple(_edge(edge, problem.nodes, kept) for edge in problem.edges)
    return Restriction(Problem(problem.name, nodes, edges, problem.limit), kept)


def _others(problem: Problem, few: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """The choices of the other nodes that are not forbidden with all that is left of a neighbour."""
    count = len(few)
    legal = [np.array(node.costs, np.int64) < FORBIDDEN for node in problem.nodes[count:]]
    for edge in problem.edges:
        if edge.head >= count > edge.tail:
            legal[edge.head - count] &= (_table(edge, problem.nodes)[list(few[edge.tail])] < FORBIDDEN).any(axis=0)
        elif edge.tail >= count > edge.head:
            legal[edge.tail - count] &= (_table(edge, problem.nodes)[:, list(few[edge.head])] < FORBIDDEN).any(axis=1)
    for there in legal:
        yield tuple(np.flatnonzero(there).tolist()) or tuple(range(there.size))


def _table(edge: Edge, nodes: Sequence[Node]) -> IntArray:
    return np.array(edge.costs, np.int64).reshape(-1, len(nodes[edge.head].costs))


def complete(problem: Problem, first: Sequence[int]) -> tuple[int, ...]:
    """The cheapest choice in which the first nodes take `first`, where the others are joined with none but those.

    Raises:
        ValueError: an edge joins two of the others.
    """
    count = len(first)
    totals = [np.array(node.costs, np.int64) for node in problem.nodes[count:]]
    for edge in problem.edges:
        if max(edge.tail, edge.head) < count:
            continue
        if min(edge.tail, edge.head) >= count:
            raise ValueError(f"nodes {edge.tail} and {edge.head} depend on each other")
        table = _table(edge, problem.nodes)
        if edge.head >= count:
            totals[edge.head - count] += table[first[edge.tail]]
        else:
            totals[edge.tail - count] += table[:, first[edge.head]]
        # Sums of forbidden entries must not overflow.
        other = max(edge.tail, edge.head) - count
        np.minimum(totals[other], FORBIDDEN, out=totals[other])
    return (*first, *(int(total.argmin()) for total in totals))


def _node(node: Node, kept: Sequence[int]) -> Node:
    if len(kept) == len(node.costs):
        return node
    usages = tuple(Usage(u.begin, u.end, tuple(u.amounts[choice] for choice in kept)) for u in node.usages)
    return Node(node.name, tuple(node.costs[choice] for choice in kept), usages)


def _edge(edge: Edge, nodes: Sequence[Node], kept: Sequence[Sequence[int]]) -> Edge:
    shape = len(nodes[edge.tail].costs), len(nodes[edge.head].costs)
    if (len(kept[edge.tail]), len(kept[edge.head])) == shape:
        return edge
    table = _table(edge, nodes)
    return Edge(edge.tail, edge.head, tuple(table[np.ix_(kept[edge.tail], kept[edge.head])].ravel().tolist()))
