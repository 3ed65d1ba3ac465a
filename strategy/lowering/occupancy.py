"""Occupancy: when every block of a rank's registers is in use, replayed from one step of its static streams.

Time is that of the rank's *main* stream, the longest static one: its i-th act is issued at 2i and done at 2i + 1. A
block is in use from the act that begins to write a piece into it until the act that reads the piece last. An act of
another static stream is issued, at the earliest, when the last main act is done that it is known to follow, and is
known to be done when a main act is issued that follows it; what follows what is the order within streams and from
writers to readers. So a block is free only when credits, whatever the timing, say so, and the backend has made streams
wait for one another there anyway.

    main   | A | B | C | D |        R is written by x, which reads what A wrote, and read by D:
    other        ( x )              in use from 1 (A is done) until 7 (D is done)

Blocks that a dynamic stream touches, and those of which no main act tells begin or end, are in use all the time. All
steps are alike: where a step's pieces do not fill the blocks evenly, a block is in use whenever it is so in some step.

Of very many micro-batches a few are replayed (`shortening`). What holds several of them at once is then in use all the
time, too.

In place: an act that may write its result over an input does so where it is the last to read it. The two blocks are
then one, in use as long as either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from strategy.lowering.arena import Interval
from strategy.lowering.shortening import Shortening, shortening
from strategy.program.program import OpTask, Port, Program

Block = tuple[int, int]
"""A register's index, and which of its blocks."""

Turn = tuple[int, int]
"""An actor's index, and which of its acts of a step."""

NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Occupant:
    """Blocks that are one piece of memory, and when it is in use."""

    blocks: tuple[Block, ...]
    lives: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class _Users:
    """Who uses a register, each by its port: the actors that write it (one, or none) and those that read it."""

    producers: tuple[tuple[int, Port], ...]
    consumers: tuple[tuple[int, Port], ...]


def num_ranks(program: Program) -> int:
    """The ranks of a program, counted up to the last that has a register or a stream."""
    registers = max((register.rank for register in program.registers), default=-1)
    streams = max((stream.rank for stream in program.streams), default=-1)
    return max(program.ranks, registers + 1, streams + 1)


@dataclass(frozen=True)
class Occupancy:
    """Of the registers of a program that are no state."""

    program: Program

    def of_rank(self, rank: int) -> list[Occupant]:
        """What is in use when on one rank, in the order of its registers."""
        return _Rank(self, rank).occupants()

    @cached_property
    def registers_of(self) -> tuple[tuple[int, ...], ...]:
        """Rank -> its registers."""
        found: list[list[int]] = [[] for _ in range(num_ranks(self.program))]
        for index, register in enumerate(self.program.registers):
            found[register.rank].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def streams_of(self) -> tuple[tuple[int, ...], ...]:
        """Rank -> its static streams, the main one first."""
        found: list[list[int]] = [[] for _ in range(num_ranks(self.program))]
        for index, stream in enumerate(self.program.streams):
            if not stream.dynamic:
                found[stream.rank].append(index)
        length = {index: len(stream.sequence) for index, stream in enumerate(self.program.streams)}
        return tuple(tuple(sorted(streams, key=lambda i: (-length[i], i))) for streams in found)

    @cached_property
    def shortenings(self) -> tuple[Shortening | None, ...]:
        """Rank -> how its streams are shortened, which is how its main one is."""
        sequences = (self.program.streams[streams[0]].sequence if streams else () for streams in self.streams_of)
        return tuple(shortening(self.program, sequence) for sequence in sequences)

    @cached_property
    def sequences(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Rank -> what is replayed of its static streams, the main one first."""
        program, found = self.program, []
        for short, streams in zip(self.shortenings, self.streams_of, strict=True):
            whole = (program.streams[i].sequence for i in streams)
            found.append(tuple(turns if short is None else short.sequence(program, turns) for turns in whole))
        return tuple(found)

    @cached_property
    def users(self) -> tuple[_Users, ...]:
        """By register."""
        producers: list[list[tuple[int, Port]]] = [[] for _ in self.program.registers]
        consumers: list[list[tuple[int, Port]]] = [[] for _ in self.program.registers]
        for index, actor in enumerate(self.program.actors):
            for port in actor.writes:
                producers[port.register].append((index, port))
            for port in actor.reads:
                consumers[port.register].append((index, port))
        return tuple(_Users(tuple(p), tuple(c)) for p, c in zip(producers, consumers, strict=True))

    @cached_property
    def dynamic(self) -> frozenset[int]:
        """The registers that actors of dynamic streams use."""
        actors = (self.program.actors[a] for s in self.program.streams if s.dynamic for a in s.sequence)
        return frozenset(port.register for actor in actors for port in (*actor.reads, *actor.writes))


class _Rank:
    """The replay of one step of one rank: `begins` and `ends` say when a turn is issued and done, at the worst."""

    def __init__(self, occupancy: Occupancy, rank: int) -> None:
        self.program, self.users = occupancy.program, occupancy.users
        self.short = occupancy.shortenings[rank]
        self.streams = occupancy.sequences[rank]
        self.mine = [i for i in occupancy.registers_of[rank] if not self.program.registers[i].initial]
        self.horizon = max(2 * len(self.streams[0]), 1) if self.streams else 1
        self.begins: dict[Turn, int] = {}
        self.ends: dict[Turn, int] = {}
        self.turns = [list(_numbered(sequence)) for sequence in self.streams]
        for position, turn in enumerate(self.turns[0] if self.turns else ()):
            self.begins[turn], self.ends[turn] = 2 * position, 2 * position + 1
        if len(self.turns) > 1:
            self._follow_forward()
            self._follow_backward()

    def _follow_forward(self) -> None:
        """When a turn of another stream is issued at the earliest; -1 where no main act of this step tells."""
        for other in self.turns[1:]:
            self.begins.update(dict.fromkeys(other, -1))
        before = {turn: self._writers(turn) for other in self.turns[1:] for turn in other}
        moved = True
        while moved:
            moved = False
            for other in self.turns[1:]:
                known = -1
                for turn in other:
                    for writer in before[turn]:
                        known = max(known, self.ends.get(writer, self.begins.get(writer, -1)))
                    moved |= known > self.begins[turn]
                    self.begins[turn] = known

    def _follow_backward(self) -> None:
        """When a turn of another stream is done at the latest; `NEVER` where no main act of this step tells."""
        after: dict[Turn, list[Turn]] = {}
        for sequence in self.turns:
            for turn in sequence:
                for writer in self._writers(turn):
                    after.setdefault(writer, []).append(turn)
        main = set(self.turns[0])
        done = {turn: NEVER for other in self.turns[1:] for turn in other}
        moved = True
        while moved:
            moved = False
            for other in self.turns[1:]:
                known = NEVER
                for turn in reversed(other):
                    for reader in after.get(turn, ()):
                        known = min(known, self.begins[reader] if reader in main else done[reader])
                    moved |= known < done[turn]
                    done[turn] = known
        self.ends.update(done)

    def _writers(self, turn: Turn) -> list[Turn]:
        """The turns that finished the pieces of this step that a turn reads."""
        actor, number = turn
        found = []
        for port in self.program.actors[actor].reads:
            if not self.program.registers[port.register].initial:
                for producer, written in self.users[port.register].producers:
                    found.append(
                        (producer, (number // self._acts_per_piece(port) + 1) * self._acts_per_piece(written) - 1)
                    )
        return found

    def _acts(self, actor: int) -> int:
        """How often an actor acts in what is replayed."""
        return self._replayed(self.program.actors[actor].acts_per_step)

    def _acts_per_piece(self, port: Port) -> int:
        """How many acts share a piece in what is replayed."""
        return self._replayed(port.acts_per_piece)

    def _replayed(self, count: int) -> int:
        long = self.short is not None and count == self.program.num_micro_batches
        return self.short.num_micro_batches if self.short is not None and long else count

    def occupants(self) -> list[Occupant]:
        """In the order of registers, those that share a block in place together."""
        lives = {register: self._lives(register) for register in self.mine}
        taken = self._taken(lives)
        followers = {source: register for register, source in taken.items()}
        found = []
        for register in self.mine:
            if register not in taken:
                chain = list(_chain(register, followers))
                for block in range(self.program.registers[register].blocks):
                    intervals = [interval for member in chain for interval in lives[member][block]]
                    found.append(Occupant(tuple((member, block) for member in chain), tuple(_merged(intervals))))
        return found

    def _lives(self, register: int) -> list[list[Interval]]:
        """By block: when it is in use; sorted, disjoint."""
        users, blocks = self.users[register], self.program.registers[register].blocks
        always = [[(0, self.horizon)] for _ in range(blocks)]
        if not users.producers or (self.short is not None and blocks > 1):
            return always
        ((producer, written),) = users.producers
        pieces = self._acts(producer) // self._acts_per_piece(written)
        steps = range(blocks // math.gcd(blocks, pieces))
        found: list[list[Interval]] = [[] for _ in range(blocks)]
        for piece in range(pieces):
            begin = self.begins.get((producer, piece * self._acts_per_piece(written)), -1)
            last = ((a, (piece + 1) * self._acts_per_piece(p) - 1) for a, p in ((producer, written), *users.consumers))
            end = max(self.ends.get(turn, NEVER) for turn in last)
            if begin < 0 or end > self.horizon:
                return always
            for step in steps:
                found[(piece + step * pieces) % blocks].append((begin, max(end, begin + 1)))
        return [list(_merged(intervals)) for intervals in found]

    def _taken(self, lives: Mapping[int, Sequence[Sequence[Interval]]]) -> dict[int, int]:
        """Register -> the one whose blocks it takes over, by acts of the main stream."""
        taken: dict[int, int] = {}
        for actor in dict.fromkeys(self.streams[0] if self.streams else ()):
            task = self.program.actors[actor].task
            if isinstance(task, OpTask) and task.in_place and task.outputs:
                ports = (*self.program.actors[actor].reads, *self.program.actors[actor].writes)
                target = ports[task.outputs[0]]
                others = {ports[i].register for p, i in enumerate(task.inputs) if p not in task.in_place}
                for position in task.in_place:
                    source = ports[task.inputs[position]]
                    free = source.register not in others and source.register not in taken.values()
                    if free and self._ends_in(source, target, actor, lives):
                        taken[target.register] = source.register
                        break
        return taken

    def _ends_in(
        self, source: Port, target: Port, actor: int, lives: Mapping[int, Sequence[Sequence[Interval]]]
    ) -> bool:
        """Whether an actor is the last to read every piece of `source`, and writes as the same piece of `target`."""
        if source.register not in lives or target.register not in lives:
            return False
        one, other = self.program.registers[source.register], self.program.registers[target.register]
        alike = (one.dtype, one.block_nbytes, one.blocks) == (other.dtype, other.block_nbytes, other.blocks)
        alike = alike and one.ragged is other.ragged is None
        if not alike or (source.acts_per_piece, target.acts_per_piece) != (1, 1):
            return False
        ends = {end for intervals in lives[source.register] for _, end in intervals}
        begins = {begin for intervals in lives[target.register] for begin, _ in intervals}
        acts = range(self._acts(actor))
        turns = {self.ends[actor, number] for number in acts}
        return ends == turns and begins == {end - 1 for end in turns}


def _numbered(sequence: Sequence[int]) -> Iterator[Turn]:
    """Every entry of a sequence with the number of the act."""
    count: dict[int, int] = {}
    for actor in sequence:
        count[actor] = count.get(actor, -1) + 1
        yield actor, count[actor]


def _chain(register: int, followers: Mapping[int, int]) -> Iterator[int]:
    yield register
    while register in followers:
        register = followers[register]
        yield register


def _merged(intervals: Sequence[Interval]) -> Iterator[Interval]:
    """The union, in order."""
    end = -1
    begin = -1
    for following in sorted(intervals):
        if following[0] < end:
            end = max(end, following[1])
            continue
        if begin >= 0:
            yield begin, end
        begin, end = following
    if begin >= 0:
        yield begin, end
