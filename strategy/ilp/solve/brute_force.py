"""Brute force, the oracle of tests: every choice is priced. For problems of a few nodes only.

Arrays have an axis for each node, along which are its choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategy.ilp.problem import FORBIDDEN, Edge, Problem

Integers = NDArray[np.int64]


def brute_force(problem: Problem) -> tuple[int, tuple[int, ...]] | None:
    """Least cost and the first choice (in lexicographic order) that has it; None where none is legal."""
    costs = _costs(problem)
    if problem.limit is not None:
        costs = np.where(_peaks(problem) <= problem.limit, costs, FORBIDDEN)
    first = np.unravel_index(int(costs.argmin()), costs.shape)
    least = int(costs[first])
    return None if least >= FORBIDDEN else (least, tuple(map(int, first)))


def brute_force_peak(problem: Problem) -> int | None:
    """The smallest peak of a legal choice, whatever the limit; None where none is legal."""
    peaks = _peaks(problem)[_costs(problem) < FORBIDDEN]
    return int(peaks.min()) if peaks.size else None


def _costs(problem: Problem) -> Integers:
    """Of every choice, none negative; what costs `FORBIDDEN` or more costs that."""
    sizes = [len(node.costs) for node in problem.nodes]
    tables = [_along(node.costs, sizes, at) for at, node in enumerate(problem.nodes)]
    tables += [_of_pairs(edge, sizes) for edge in problem.edges]
    total = np.zeros(sizes, np.int64)
    for table in tables:
        assert table.min() >= 0
        np.minimum(total + table, FORBIDDEN, out=total)
    return total


def _peaks(problem: Problem) -> Integers:
    """Of every choice: the most that is held when something begins to be."""
    sizes = [len(node.costs) for node in problem.nodes]
    usages = [(at, usage) for at, node in enumerate(problem.nodes) for usage in node.usages]
    peaks = np.zeros(sizes, np.int64)
    for time in {usage.begin for _, usage in usages}:
        held = [_along(usage.amounts, sizes, at) for at, usage in usages if usage.begin <= time < usage.end]
        np.maximum(peaks, sum(held, np.zeros(sizes, np.int64)), out=peaks)
    return peaks


def _of_pairs(edge: Edge, sizes: Sequence[int]) -> Integers:
    table = _integers(edge.costs).reshape(sizes[edge.tail], sizes[edge.head])
    if edge.tail == edge.head:
        return _along(table.diagonal(), sizes, edge.tail)
    return _along(table if edge.tail < edge.head else table.T, sizes, edge.tail, edge.head)


def _along(values: Sequence[int] | Integers, sizes: Sequence[int], *axes: int) -> Integers:
    """Values of some axes, in the order of the axes, the same along all others."""
    return _integers(values).reshape([size if axis in axes else 1 for axis, size in enumerate(sizes)])


def _integers(values: Sequence[int] | Integers) -> Integers:
    return np.array([min(value, FORBIDDEN) for value in values] if not isinstance(values, np.ndarray) else values)
