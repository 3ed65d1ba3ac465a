"""Brute force, the oracle of tests: every choice, priced one by one. For problems of a few nodes only."""

from __future__ import annotations

from itertools import product

from strategy.ilp.problem import FORBIDDEN, Problem, evaluate


def brute_force(problem: Problem) -> tuple[int, tuple[int, ...]] | None:
    """Least cost and the first choice (in lexicographic order) that has it; None where none is legal."""
    best: tuple[int, tuple[int, ...]] | None = None
    for choice in product(*(range(len(node.costs)) for node in problem.nodes)):
        value = evaluate(problem, choice)
        fits = problem.limit is None or value.peak <= problem.limit
        if fits and value.cost < FORBIDDEN and (best is None or value.cost < best[0]):
            best = (value.cost, choice)
    return best


def brute_force_peak(problem: Problem) -> int | None:
    """The smallest peak of a legal choice, whatever the limit; None where none is legal."""
    values = (evaluate(problem, choice) for choice in product(*(range(len(node.costs)) for node in problem.nodes)))
    return min((value.peak for value in values if value.cost < FORBIDDEN), default=None)
