"""Conflict: when too much memory is held, whatever is chosen, for a message that says what stands in the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from strategy.base.budget import UNLIMITED, Budget
from strategy.ilp.problem import FORBIDDEN, Problem
from strategy.ilp.solve.memory_feasibility import least_peak


@dataclass(frozen=True, slots=True)
class Overfull:
    """During [`begin`, `end`) at least `least` bytes are held.

    If not `proved`, that is so only in the choice of the smallest peak: no time is overfull for itself.
    """

    begin: int
    end: int
    least: int
    proved: bool

    def __str__(self) -> str:
        return f"from {self.begin} to {self.end} at least {self.least} bytes are held"


def overfull_times(problem: Problem, *, budget: Budget = UNLIMITED) -> tuple[Overfull, ...]:
    """When the limit is exceeded, the fullest time first; empty where there is no limit, or nothing is known in time.

    A time is overfull for itself where the least amounts of all that live then exceed the limit. Where none is, choices
    that save memory at one time cost it at another: then it is the times of the choice with the smallest peak.
    """
    limit = problem.limit
    if limit is None:
        return ()
    alone = tuple(_spans(problem, limit, None))
    if alone:
        return _fullest_first(alone)
    answer = least_peak(problem, budget=budget)
    return () if answer.choice is None else _fullest_first(tuple(_spans(problem, limit, answer.choice)))


def _fullest_first(spans: tuple[Overfull, ...]) -> tuple[Overfull, ...]:
    return tuple(sorted(spans, key=lambda span: (-span.least, span.begin)))


def _spans(problem: Problem, limit: int, choice: tuple[int, ...] | None) -> Iterator[Overfull]:
    """Maximal times with one amount over the limit: of a choice, or of the least that every node can hold then."""
    change: dict[int, int] = {}
    for i, node in enumerate(problem.nodes):
        allowed = [c for c, cost in enumerate(node.costs) if cost < FORBIDDEN]
        for usage in node.usages:
            # Usages of one node are bounded one by one: a choice that is least for one may be more for another.
            least = min((usage.amounts[c] for c in allowed), default=0)
            amount = least if choice is None else usage.amounts[choice[i]]
            change[usage.begin] = change.get(usage.begin, 0) + amount
            change[usage.end] = change.get(usage.end, 0) - amount
    times = [time for time in sorted(change) if change[time]]
    live = 0
    for begin, end in itertools.pairwise(times):
        live += change[begin]
        if live > limit:
            yield Overfull(begin, end, live, proved=choice is None)
