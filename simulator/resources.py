"""A resource that acts share: equal processor sharing, in whole nanoseconds.

Of `n` acts that have bytes left to move through a resource, each gets an n-th of its bytes per second. Resources
are independent: an act that crosses two of them ends when the slower is through. A rendezvous counts as one act.

The *level* of a resource is how much of its time an act that had been there from the start would have got. One that
joins at level L with bytes that take t is through at level L + t, whatever joins or leaves in between, so a change
costs O(log n).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

from strategy.base.errors import PlanError
from strategy.program.program import Program, time_alone_ns

T = TypeVar("T")

SHARES = 720720
"""lcm(1, ..., 16): levels count in this part of a nanosecond, so that up to 16 acts share without rounding."""


def level_units(nbytes: int, bytes_per_s: float) -> int:
    """How much the level of a resource rises while it moves `nbytes` for one act alone, rounded up."""
    return time_alone_ns(nbytes * SHARES, bytes_per_s)


class SharedResource(Generic[T]):
    """Acts (of any type `T`) that move bytes through one resource. Time never goes back between calls."""

    def __init__(self, name: str, bytes_per_s: float) -> None:
        check_rate(name, bytes_per_s)
        self.name = name
        self.bytes_per_s = round(bytes_per_s)
        self.busy_ns = 0
        self.served_bytes = 0
        self.version = 0
        """Counts changes of the set of acts: an end that was announced under an older version is void."""
        self._level = 0
        self._now_ns = 0
        self._joined = 0
        self._queue: list[tuple[int, int, int, T]] = []

    def join(self, now_ns: int, act: T, nbytes: int) -> None:
        """`act` begins to move `nbytes` (> 0)."""
        self._advance(now_ns)
        self._joined += 1
        self.version += 1
        heappush(self._queue, (self._level + level_units(nbytes, self.bytes_per_s), self._joined, nbytes, act))

    def leave(self, now_ns: int) -> list[T]:
        """Acts that are through by now."""
        self._advance(now_ns)
        through = []
        while self._queue and self._queue[0][0] <= self._level:
            _, _, nbytes, act = heappop(self._queue)
            self.served_bytes += nbytes
            through.append(act)
        self.version += 1
        return through

    def next_end_ns(self) -> int | None:
        """When the next act is through if none joins before, rounded up; None if no act is here."""
        if not self._queue:
            return None
        missing = self._queue[0][0] - self._level
        return max(self._now_ns, self._now_ns - (-missing * len(self._queue) // SHARES))

    def _advance(self, now_ns: int) -> None:
        if self._queue:
            elapsed_ns = now_ns - self._now_ns
            self.busy_ns += elapsed_ns
            self._level += elapsed_ns * SHARES // len(self._queue)
        self._now_ns = now_ns


def check_rate(name: str, bytes_per_s: float) -> None:
    """Refuse a resource without a rate.

    Raises:
        PlanError: less than one byte per second, or no end of them.
    """
    if not bytes_per_s >= 1 or bytes_per_s == float("inf"):
        raise PlanError("not a possible rate", where=f"resource {name}", got=bytes_per_s, expected=">= 1 byte/s")


def check_demands(program: Program) -> None:
    """Refuse acts that demand what the program does not have.

    Raises:
        PlanError: an unknown resource, and whose; or one without a rate.
    """
    for name, bytes_per_s in program.resources.items():
        check_rate(name, bytes_per_s)
    for actor in program.actors:
        for name, _ in actor.work.demands:
            if name not in program.resources:
                known = ", ".join(sorted(program.resources)) or "none"
                raise PlanError("an unknown resource", where=actor.name, got=name, expected=f"one of: {known}")
