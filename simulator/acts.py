"""Acts: what happened in virtual time, as arrays; records are made of them where somebody looks at each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategy.program.program import Program
from strategy.program.timeline import ActRecord, Clock, Timeline, make_timeline

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Acts:
    """Every act of `steps` steps, stream by stream in the order in which they ran.

    A stream's are `first[i]` to `first[i + 1]`. The other arrays are by act, as `strategy.program.timeline.ActRecord`
    has it.
    """

    steps: int
    first: Integers
    actor: Integers
    number: Integers
    start_ns: Integers
    end_ns: Integers
    ready_ns: Integers

    def __len__(self) -> int:
        """How many there are."""
        return len(self.actor)

    @property
    def makespan_ns(self) -> int:
        """When the last act ended."""
        return int(self.end_ns.max(initial=0))

    @property
    def stream(self) -> Integers:
        """The stream of every act."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def timeline_of(program: Program, acts: Acts) -> Timeline:
    """A record per act, with the blocks that it used."""
    registers = program.registers
    records = []
    columns = (acts.actor, acts.stream, acts.number, acts.start_ns, acts.end_ns, acts.ready_ns)
    for actor, stream, number, start_ns, end_ns, ready in zip(*(column.tolist() for column in columns), strict=True):
        found = program.actors[actor]
        reads = tuple([number // p.acts_per_piece % registers[p.register].blocks for p in found.reads])
        writes = tuple(
            [
                (number // p.acts_per_piece + registers[p.register].initial) % registers[p.register].blocks
                for p in found.writes
            ]
        )
        records.append(ActRecord(actor, stream, number, reads, writes, start_ns, end_ns, ready))
    return make_timeline(program, records, clock=Clock.SIMULATED, steps=acts.steps)


def acts_of(timeline: Timeline) -> Acts:
    """The same acts without their blocks."""
    columns = ("actor", "number", "start_ns", "end_ns", "ready_ns")
    found = {name: np.array([getattr(r, name) for r in timeline.records], dtype=np.int64) for name in columns}
    counts = np.bincount(
        np.array([r.stream for r in timeline.records], dtype=np.int64), minlength=len(timeline.streams)
    )
    return Acts(timeline.steps, np.concatenate(([0], np.cumsum(counts))), **found)
