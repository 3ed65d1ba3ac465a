"""What the workers recorded, as a timeline: the measured counterpart of the simulator's."""

from __future__ import annotations

from collections.abc import Iterable

from executor.runtime.worker import Record
from strategy.program.program import Program
from strategy.program.timeline import ActRecord, Clock, Timeline, from_zero, make_timeline


def measured_timeline(program: Program, records: Iterable[Record], *, steps: int) -> Timeline:
    """The records of all ranks by one clock (see `clocks`), from time 0.

    A worker starts its part of a rendezvous as soon as it may; the act itself starts when the last member has.
    """
    rows = list(records)
    last: dict[tuple[int, int], int] = {}
    for actor, _, number, _, _, _, start_ns, _ in rows:
        meeting = program.actors[actor].rendezvous
        if meeting is not None:
            last[meeting, number] = max(start_ns, last.get((meeting, number), start_ns))
    acts = []
    for actor, stream, number, read_blocks, write_blocks, ready_ns, start_ns, end_ns in rows:
        meeting = program.actors[actor].rendezvous
        met_ns = start_ns if meeting is None else min(last[meeting, number], end_ns)
        acts.append(ActRecord(actor, stream, number, read_blocks, write_blocks, met_ns, end_ns, ready_ns))
    return from_zero(make_timeline(program, acts, clock=Clock.MEASURED, steps=steps))
