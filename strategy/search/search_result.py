"""Search result: the answer of a search, and what it was compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strategy.base.status import Status
from strategy.layout.config import PlanConfig
from strategy.plan.plan import Plan

Watch = Callable[[int, int, PlanConfig, int, int | None], None]
"""(number of the candidate, candidates in all, the candidate, bound and best objective so far): for progress bars.

Both in nanoseconds; the bound is on what has been solved and on this candidate, the best is None before there is any.
"""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer, and what it was compared with."""

    plan: Plan
    status: Status
    others: tuple[Plan, ...]
    """Those that were simulated beside it, fastest first."""
    num_candidates: int
    search_time_s: float
    interrupted: bool = False
    """Whether a signal ended it (Ctrl-C), with the best so far."""

    @property
    def runners_up(self) -> tuple[tuple[PlanConfig, float], ...]:
        """Configurations of the others, with their simulated steps."""
        return tuple((plan.config, plan.claims.step_time_s) for plan in self.others)
