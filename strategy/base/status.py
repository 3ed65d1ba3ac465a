"""Status: how far an answer is proved, for problems and for plans alike."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How work ended; documents have its value, people are told its `message`."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    CUTOFF = "cutoff"
    LIMIT = "limit"
    INTERRUPTED = "interrupted"

    @property
    def message(self) -> str:
        """What it says of the answer."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.OPTIMAL: "the lower bound meets the cost",
    Status.FEASIBLE: "the work ended by itself, with a gap between lower bound and cost",
    Status.INFEASIBLE: "two independent methods agree that no legal choice exists",
    Status.CUTOFF: "nothing costs less than what was asked for",
    Status.LIMIT: "the time or the work ran out first, or nothing was left that raises the bound",
    Status.INTERRUPTED: "stopped from outside, with the best so far",
}
