"""Memory over time: the bytes of live register blocks on every rank's device, from the credits that a timeline implies.

A block is live from the start of the act that first writes a piece into it until the end of the act that returns
the piece last. State (registers that start with a piece) is always live. Blocks are allocated once for a whole
run, so this is what a perfect reuse of dead blocks would need, not what is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategy.graph import Space
from strategy.program import Program
from strategy.timeline import Timeline


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Live bytes of one rank: `nbytes[i]` from `time_ns[i]` until `time_ns[i + 1]`. The first time is 0."""

    rank: int
    time_ns: tuple[int, ...]
    nbytes: tuple[int, ...]

    @property
    def peak_nbytes(self) -> int:
        """The most bytes that are live at once."""
        return max(self.nbytes)


@dataclass(frozen=True, slots=True)
class PieceLife:
    """One piece of a register is live in [begin_ns, end_ns)."""

    register: int
    piece: int
    begin_ns: int
    end_ns: int


def memory_timelines(program: Program, timeline: Timeline) -> tuple[MemoryTimeline, ...]:
    """Live bytes over time, per rank."""
    state = [0] * program.ranks
    changes: list[dict[int, int]] = [{0: 0} for _ in range(program.ranks)]
    for register in program.registers:
        if register.initial and register.space is Space.DEVICE:
            state[register.rank] += register.nbytes
    for life in piece_lives(program, timeline):
        register = program.registers[life.register]
        if not register.initial and register.space is Space.DEVICE:
            change = changes[register.rank]
            change[life.begin_ns] = change.get(life.begin_ns, 0) + register.block_nbytes
            change[life.end_ns] = change.get(life.end_ns, 0) - register.block_nbytes
    return tuple(_accumulate(rank, state[rank], changes[rank]) for rank in range(program.ranks))


def piece_lives(program: Program, timeline: Timeline) -> list[PieceLife]:
    """When each piece that an act writes is live, ordered by register and piece."""
    begin_ns: dict[tuple[int, int], int] = {}
    end_ns: dict[tuple[int, int], int] = {}
    for record in timeline.records:
        actor = program.actors[record.actor]
        for port in actor.writes:
            key = port.register, record.number // port.acts_per_piece + program.registers[port.register].initial
            begin_ns[key] = min(begin_ns.get(key, record.start_ns), record.start_ns)
            end_ns[key] = max(end_ns.get(key, 0), record.end_ns)
        for port in actor.reads:
            key = port.register, record.number // port.acts_per_piece
            end_ns[key] = max(end_ns.get(key, 0), record.end_ns)
    return [PieceLife(*key, begin_ns[key], end_ns[key]) for key in sorted(begin_ns)]


def _accumulate(rank: int, state_nbytes: int, changes: dict[int, int]) -> MemoryTimeline:
    """Sum the changes in order of time; what is returned and taken at one instant does not count twice."""
    times, levels, nbytes = [], [], state_nbytes
    for time_ns in sorted(changes):
        nbytes += changes[time_ns]
        times.append(time_ns)
        levels.append(nbytes)
    return MemoryTimeline(rank, tuple(times), tuple(levels))
