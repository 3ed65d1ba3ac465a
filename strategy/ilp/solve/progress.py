"""What is known while a problem is being solved, how much was done for it, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strategy.ilp.problem import FORBIDDEN, Problem, evaluate
from strategy.ilp.solve.core import Core, OutOfTimeError

# Called with seconds since the start, the lower bound and the least cost so far (None: none yet).
Report = Callable[[float, int | None, int | None], None]

# Entries of tables read per unit of work.
WORK_ENTRIES = 1_000_000


@dataclass(slots=True)
class Progress:
    """The best legal choice and the best bound so far, both in exact integers of the original problem."""

    problem: Problem
    started_s: float
    deadline_s: float
    cutoff: int | None = None
    work_limit: int | None = None
    report: Report | None = None
    cost: int | None = None
    choice: tuple[int, ...] | None = None
    peak: int | None = None
    first_feasible_s: float | None = None
    lower_bound: int | None = None
    method: str = "reductions"
    entries: int = 0

    @property
    def below(self) -> int | None:
        """Only answers that cost less than this are of interest: the incumbent's cost or the cutoff."""
        known = [limit for limit in (self.cost, self.cutoff) if limit is not None]
        return min(known, default=None)

    @property
    def out_of_work(self) -> bool:
        """Whether the work or the time is used up."""
        spent = self.work_limit is not None and self.entries >= self.work_limit * WORK_ENTRIES
        return spent or time.perf_counter() >= self.deadline_s

    def spend(self, entries: int) -> None:
        """Counts work.

        Raises:
            OutOfTimeError: the work or the time is used up.
        """
        self.entries += entries
        if self.out_of_work:
            raise OutOfTimeError

    def offer(self, choice: Sequence[int]) -> None:
        """Takes `choice` if it is legal and cheaper."""
        value = evaluate(self.problem, choice)
        fits = self.problem.limit is None or value.peak <= self.problem.limit
        if fits and value.cost < FORBIDDEN and (self.cost is None or value.cost < self.cost):
            self.cost, self.peak, self.choice = value.cost, value.peak, tuple(choice)
            if self.first_feasible_s is None:
                self.first_feasible_s = time.perf_counter() - self.started_s
            self.tell()

    def offer_picks(self, core: Core, picks: dict[int, int]) -> None:
        """Lifts the choice of a core's live nodes and takes it if it is legal and cheaper."""
        full = core.lift(picks)
        self.offer([full[node] for node in range(len(self.problem.nodes))])

    def raise_bound(self, bound: int, method: str) -> None:
        """Takes a bound on what is of interest; cut off where that ends, it bounds everything."""
        bound = bound if self.below is None else min(bound, self.below)
        if self.lower_bound is None or bound > self.lower_bound:
            self.lower_bound, self.method = bound, method
            self.tell()

    def tell(self) -> None:
        """Reports bound and cost to whoever asked."""
        if self.report is not None:
            self.report(time.perf_counter() - self.started_s, self.lower_bound, self.cost)
