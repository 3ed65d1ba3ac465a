"""In flight: how many micro-batches of a tensor are held at once, counted from the order of the chunks.

A *leg* is what all micro-batches do on one stage, in one phase and on one lap. The stages run their chunks in order,
each as soon as its input is there and in one unit of time, messages in none. A tensor is held from the beginning of the
chunk that writes it to the end of the last one that reads it. With as many blocks as are held in this one run nothing
waits for a block in it; so no timing makes the program hang for want of them (see `protocol`).

What is held at once settles after a few rounds of the pipeline, or it is all micro-batches, as under GPipe. So `ROUNDS`
of them are run at most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from strategy.base.errors import InternalError
from strategy.graph.graph import Phase
from strategy.layout.schedule import Chunk, Schedule, chunk_order, position_of

PHASES = tuple(Phase)
ROUNDS = 8
"""Micro-batches, per stage, after which nothing new happens."""


@dataclass(frozen=True, slots=True)
class Leg:
    """Where a chunk is, its micro-batch aside."""

    phase: Phase
    stage: int
    lap: int = 0


class UnitRun:
    """When every chunk begins where each takes one unit of time; by leg, a time per micro-batch."""

    def __init__(
        self, schedule: Schedule, stages: int, num_micro_batches: int, begins: Mapping[Leg, tuple[int, ...]], end: int
    ) -> None:
        self.schedule, self.stages, self.num_micro_batches = schedule, stages, num_micro_batches
        self.begins, self.end = begins, end
        self._counts: dict[tuple[Leg, frozenset[Leg], bool], int] = {}
        self._straight: dict[tuple[Leg, frozenset[Leg]], bool] = {}

    def in_flight(self, written: Leg, read: Collection[Leg], *, arrives: bool = False) -> int:
        """Most micro-batches that are written and whose last reader has not ended; `arrives`: once the writer ended."""
        key = written, frozenset(read), arrives
        if key not in self._counts:
            self._counts[key] = self._count(*key)
        return self._counts[key]

    def straight(self, written: Leg, read: Collection[Leg]) -> bool:
        """Whether all that a stage runs from writer to last reader stands between the two in the graph, too."""
        key = written, frozenset(read)
        if key not in self._straight:
            self._straight[key] = self._goes_straight(*key)
        return self._straight[key]

    def _count(self, written: Leg, read: Collection[Leg], arrives: bool) -> int:
        begins = [time + arrives for time in self.begins_of(written)]
        ends = sorted(max(times) + 1 for times in zip(*(self.begins_of(leg) for leg in read), strict=True))
        most = max((held - bisect_right(ends, time) for held, time in enumerate(begins, 1)), default=1)
        return self.num_micro_batches if most == len(ends) else max(most, 1)

    def begins_of(self, leg: Leg) -> tuple[int, ...]:
        """When the chunks of a leg begin, micro-batch by micro-batch; updates follow all chunks."""
        if leg in self.begins:
            return self.begins[leg]
        count = len(next(iter(self.begins.values())))
        return (self.end,) * count

    def _goes_straight(self, written: Leg, read: Collection[Leg]) -> bool:
        first, last = self._graph_position(written), max(map(self._graph_position, read))
        outside = [
            times
            for leg, times in self.begins.items()
            if leg.stage == written.stage and not first <= self._graph_position(leg) <= last
        ]
        held = zip(self.begins_of(written), *map(self.begins_of, read), strict=True)
        return not any(
            bisect_left(times, max(until)) > bisect_right(times, begin) for begin, *until in held for times in outside
        )

    def _graph_position(self, leg: Leg) -> tuple[int, int]:
        """Where the ops of a leg stand in the graph: phase after phase, backwards against the pipeline."""
        position = position_of(self.schedule, self.stages, leg.stage, leg.lap)
        return PHASES.index(leg.phase), position if leg.phase is Phase.FORWARD else -position


@lru_cache(maxsize=1024)
def unit_run(schedule: Schedule, stages: int, num_micro_batches: int, laps: int = 1) -> UnitRun:
    """Run the chunks of all stages, each in one unit of time."""
    count = min(num_micro_batches, ROUNDS * stages)
    waiting = [deque(chunk_order(schedule, stages, stage, count, laps)) for stage in range(stages)]
    begins: dict[Leg, list[int]] = {}
    ends: dict[tuple[Phase, int], list[int]] = {}
    free = [0] * stages

    def arrival(chunk: Chunk, place: int) -> int | None:
        """When the input of a chunk is there; None while that is not known."""
        before = place - 1 if chunk.phase is Phase.FORWARD else place + 1
        if chunk.phase is Phase.WEIGHT or not 0 <= before < stages * laps:
            return 0
        sent = ends.get((chunk.phase, before), [])
        return sent[chunk.micro_batch] if chunk.micro_batch < len(sent) else None

    while any(waiting):
        left = sum(map(len, waiting))
        for stage, chunks in enumerate(waiting):
            while chunks:
                place = position_of(schedule, stages, stage, chunks[0].lap)
                arrived = arrival(chunks[0], place)
                if arrived is None:
                    break
                chunk, begin = chunks.popleft(), max(free[stage], arrived)
                begins.setdefault(Leg(chunk.phase, stage, chunk.lap), []).append(begin)
                ends.setdefault((chunk.phase, place), []).append(begin + 1)
                free[stage] = begin + 1
        if sum(map(len, waiting)) == left:
            raise InternalError(f"{schedule} hangs with {left} acts left")
    found = {leg: tuple(times) for leg, times in begins.items()}
    return UnitRun(schedule, stages, num_micro_batches, found, max(free))
