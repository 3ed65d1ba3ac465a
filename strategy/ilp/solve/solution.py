"""What a solver answers: a choice, its exact cost, a proved lower bound, and what that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategy.ilp.certificate.proof import Proof


class SolveStatus(StrEnum):
    """How far the answer is proved."""

    OPTIMAL = "optimal"  # the bound meets the cost
    FEASIBLE = "feasible"  # the search ended by itself, but its bound does not meet the cost
    INFEASIBLE = "infeasible"  # two independent methods agree that no legal choice exists
    CUTOFF = "cutoff"  # no legal choice costs less than the caller asked for; the choice may be missing
    LIMIT = "limit"  # the time or the work ran out; the choice may be missing
    INTERRUPTED = "interrupted"  # stopped from the keyboard; the choice may be missing


@dataclass(frozen=True, slots=True)
class Solution:
    """One answer; costs are integers in the problem's own unit.

    `lower_bound` never exceeds the cost of any legal choice; without a legal choice it means nothing.
    `method` names the step that gave the bound: reductions, elimination, messages, branching.
    `proof` shows `lower_bound`, or that nothing is legal, to `strategy.ilp.certificate.check`.
    """

    status: SolveStatus
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
