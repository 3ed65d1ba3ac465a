"""Solution: what a solver answers, a choice, its exact cost, a proved lower bound, and what that makes it."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.base.status import Status
from strategy.ilp.certificate.proof import Proof


@dataclass(frozen=True, slots=True)
class Solution:
    """One answer; costs are integers in the problem's own unit.

    `lower_bound` never exceeds the cost of any legal choice; without a legal choice it means nothing.
    `method` names the step that gave the bound: reductions, elimination, messages, branching.
    `proof` shows `lower_bound`, or that nothing is legal, to `strategy.ilp.certificate.check`.
    """

    status: Status
    choice: tuple[int, ...] | None
    cost: int | None
    lower_bound: int
    peak: int | None = None
    solve_time_s: float = 0.0
    first_feasible_s: float | None = None
    method: str = ""
    proof: Proof | None = None

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost; 0 when they meet, None without a choice."""
        if self.cost is None:
            return None
        distance = self.cost - self.lower_bound
        return 0.0 if distance <= 0 else distance / max(abs(self.cost), 1)
