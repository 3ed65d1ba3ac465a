"""Progress: the incumbent and the bound while a problem is being solved, the work done for it, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.ilp.problem import FORBIDDEN, Problem, evaluate
from strategy.ilp.solve.core import Core

# Called with seconds since the start, the lower bound and the least cost so far (None: none yet).
Report = Callable[[float, int | None, int | None], None]


@dataclass(slots=True)
class Progress:
    """The best legal choice and the best bound so far, both in exact integers of the original problem."""

    problem: Problem
    started_s: float
    budget: Budget
    cutoff: int | None = None
    report: Report | None = None
    cost: int | None = None
    choice: tuple[int, ...] | None = None
    peak: int | None = None
    first_feasible_s: float | None = None
    lower_bound: int | None = None
    method: str = "reductions"
    entries: int = 0

    @property
    def upper_bound(self) -> int | None:
        """The incumbent's cost or the cutoff, whichever is less: only what costs less is of interest."""
        known = [limit for limit in (self.cost, self.cutoff) if limit is not None]
        return min(known, default=None)

    def spend(self, entries: int) -> None:
        """Counts work: entries of tables read.

        Raises:
            OutOfTimeError: the budget is used up.
        """
        self.entries += entries
        if self.budget.is_over(self.entries):
            raise OutOfTimeError("the time or the work is used up")

    def offer(self, choice: Sequence[int]) -> None:
        """Takes `choice` if it is legal and cheaper."""
        value = evaluate(self.problem, choice)
        fits = self.problem.limit is None or value.peak <= self.problem.limit
        if fits and value.cost < FORBIDDEN and (self.cost is None or value.cost < self.cost):
            self.cost, self.peak, self.choice = value.cost, value.peak, tuple(choice)
            if self.first_feasible_s is None:
                self.first_feasible_s = time.monotonic() - self.started_s
            self.tell()

    def offer_picks(self, core: Core, picks: Mapping[int, int]) -> None:
        """Lifts the choice of a core's live nodes and takes it if it is legal and cheaper."""
        full = core.lift(picks)
        self.offer([full[node] for node in range(len(self.problem.nodes))])

    def raise_bound(self, bound: int, method: str) -> None:
        """Takes a bound on what is of interest; cut off where that ends, it bounds everything."""
        bound = bound if self.upper_bound is None else min(bound, self.upper_bound)
        if self.lower_bound is None or bound > self.lower_bound:
            self.lower_bound, self.method = bound, method
            self.tell()

    def tell(self) -> None:
        """Reports bound and cost to whoever asked."""
        if self.report is not None:
            self.report(time.monotonic() - self.started_s, self.lower_bound, self.cost)
