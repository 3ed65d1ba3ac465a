"""Clocks of nodes: how far each rank's is ahead of rank 0's, so that what ranks recorded can stand in one timeline.

A monotonic clock counts from its node's start, and no two count alike. Rank 0 and another exchange short messages:

    rank 0   asked ................... heard        ahead = told - (asked + heard) / 2
    other              .. told ..

which is off by half of the round trip at most (Cristian 1989, "Probabilistic clock synchronization", Distributed
Computing 3); of many rounds the shortest counts. A reading before the work and one after it give the drift between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from executor.runtime.worker import Record

Round = tuple[int, int, int]
"""(asked, told, heard) in nanoseconds: rank 0's clock, the other's, rank 0's."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """By rank, how far its clock is ahead of rank 0's at `at_ns` of that, and by how much that may be off."""

    at_ns: int
    ahead_ns: tuple[int, ...]
    half_width_ns: tuple[int, ...]


def read_rounds(rounds: Iterable[Round]) -> tuple[int, int]:
    """How far the other clock is ahead, and by how much that may be off: by the shortest of the rounds."""
    asked, told, heard = min(rounds, key=lambda one: one[2] - one[0])
    return told - (asked + heard) // 2, (heard - asked + 1) // 2


def on_one_clock(rank: int, records: Sequence[Record], before: ClockReading, after: ClockReading) -> list[Record]:
    """The records of a rank by rank 0's clock. Between two readings the clocks drift apart evenly.

    Returns:
        Records of the same lengths of time, but for the drift (a clock that is 50 ppm fast: 50 ns in a millisecond).
    """
    first, last = before.ahead_ns[rank], after.ahead_ns[rank]
    begin, end = before.at_ns + first, after.at_ns + last

    def moved(time_ns: int) -> int:
        if first == last or end == begin:
            return time_ns - first
        return time_ns - first - (last - first) * (time_ns - begin) // (end - begin)

    return [
        (actor, stream, number, reads, writes, moved(ready_ns), moved(start_ns), moved(end_ns))
        for actor, stream, number, reads, writes, ready_ns, start_ns, end_ns in records
    ]
