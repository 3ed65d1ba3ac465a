"""Memory over time: the bytes of live register blocks on every rank's device, from the credits that a timeline implies.

A block is live from the start of the act that first writes a piece into it until the end of the act that returns
the piece last, or until an act writes over it in place. State (registers that start with a piece) is always live.
Memory is allocated once for a whole run: what is allocated (`strategy.lowering.memory`) is never less than what is
live, and more by what no two blocks can share whatever the timing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest

from strategy.lowering.memory import is_allocated, memory_nbytes
from strategy.program.program import Program
from strategy.program.timeline import Timeline
from strategy.sbp.placement import Space

FOREVER_NS = 2**62
"""When what is held all the time is returned."""


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Live bytes of one rank: `nbytes[i]` from `time_ns[i]` until `time_ns[i + 1]`. The first time is 0.

    `allocated_nbytes` is what an allocated program takes; 0 where none has offsets. `tensors` fill the peak, with
    their bytes, largest first.
    """

    rank: int
    time_ns: tuple[int, ...]
    nbytes: tuple[int, ...]
    allocated_nbytes: int = 0
    tensors: tuple[tuple[str, int], ...] = ()

    @property
    def peak_nbytes(self) -> int:
        """The most bytes that are live at once."""
        return max(self.nbytes)


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes of one tensor, during [begin_ns, end_ns)."""

    name: str
    nbytes: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PieceLife:
    """One piece of a register is live in [begin_ns, end_ns)."""

    register: int
    piece: int
    begin_ns: int
    end_ns: int


def memory_timelines(program: Program, timeline: Timeline) -> tuple[MemoryTimeline, ...]:
    """Live bytes over time, per rank that is there itself."""
    held: list[list[_Held]] = [[] for _ in range(program.ranks)]
    for register in program.registers:
        if register.initial and register.space is Space.DEVICE:
            held[register.rank].append(_Held(register.name, register.nbytes, 0, FOREVER_NS))
    for life in _until_overwritten(program, piece_lives(program, timeline)):
        register = program.registers[life.register]
        if not register.initial and register.space is Space.DEVICE:
            held[register.rank].append(_Held(register.name, register.block_nbytes, life.begin_ns, life.end_ns))
    allocated = memory_nbytes(program) if is_allocated(program) else (0,) * program.ranks
    shown = sorted(set(program.alike)) or range(program.ranks)
    return tuple(_timeline(rank, held[rank], allocated[rank]) for rank in shown)


def live_peaks_nbytes(program: Program, timeline: Timeline) -> tuple[int, ...]:
    """By rank: the most bytes that are live at once on its device."""
    peaks = [0] * program.ranks
    for memory in memory_timelines(program, timeline):
        peaks[memory.rank] = memory.peak_nbytes
    return program.of_all_ranks(peaks)


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


def _until_overwritten(program: Program, lives: Sequence[PieceLife]) -> Iterator[PieceLife]:
    """Each life, ended where the next one at its place begins: what is written in place takes its input's block."""
    at: dict[tuple[int, int], list[PieceLife]] = {}
    for life in lives:
        register = program.registers[life.register]
        if register.offsets:
            at.setdefault((register.rank, register.offsets[life.piece % register.blocks]), []).append(life)
        else:
            yield life
    for together in at.values():
        together.sort(key=lambda life: (life.begin_ns, life.end_ns))
        for life, following in zip_longest(together, together[1:]):
            end_ns = life.end_ns if following is None else min(life.end_ns, following.begin_ns)
            yield replace(life, end_ns=end_ns)


def _timeline(rank: int, held: Sequence[_Held], allocated_nbytes: int) -> MemoryTimeline:
    """Sum up what is held; what is returned and taken at one instant does not count twice."""
    changes: dict[int, int] = {0: 0}
    for one in held:
        changes[one.begin_ns] = changes.get(one.begin_ns, 0) + one.nbytes
        if one.end_ns < FOREVER_NS:
            changes[one.end_ns] = changes.get(one.end_ns, 0) - one.nbytes
    times = sorted(changes)
    levels = list(accumulate(changes[time_ns] for time_ns in times))
    at_ns = times[levels.index(max(levels))]
    tensors: dict[str, int] = {}
    for one in held:
        if one.begin_ns <= at_ns < one.end_ns:
            tensors[one.name] = tensors.get(one.name, 0) + one.nbytes
    largest_first = tuple(sorted(tensors.items(), key=lambda pair: -pair[1]))
    return MemoryTimeline(rank, tuple(times), tuple(levels), allocated_nbytes, largest_first)
