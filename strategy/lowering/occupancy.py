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
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strategy.lowering.arena import Integers, Lives
from strategy.lowering.shortening import Shortening, shortening
from strategy.program.program import OpTask, Port, Program

Block = tuple[int, int]
"""A register's index, and which of its blocks."""

NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Occupant:
    """Blocks that are one piece of memory, and when it is in use."""

    blocks: tuple[Block, ...]
    lives: Lives


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
    def sequences(self) -> tuple[tuple[Integers, ...], ...]:
        """Rank -> what is replayed of its static streams, the main one first."""
        program, found = self.program, []
        for short, streams in zip(self.shortenings, self.streams_of, strict=True):
            whole = (np.array(program.streams[i].sequence, np.int64) for i in streams)
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
    """The replay of one step of one rank: `begins` and `ends` say when a turn is issued and done, at the worst.

    Turns are numbered actor by actor: act n of an actor is `first[actor] + n`. Of what no main act tells, the begin is
    -1 and the end `NEVER`.
    """

    def __init__(self, occupancy: Occupancy, rank: int) -> None:
        self.program, self.users = occupancy.program, occupancy.users
        self.short = occupancy.shortenings[rank]
        streams = occupancy.sequences[rank]
        self.main = streams[0] if streams else np.zeros(0, np.int64)
        self.mine = [i for i in occupancy.registers_of[rank] if not self.program.registers[i].initial]
        self.horizon = max(2 * len(self.main), 1)
        found, counts = np.unique(np.concatenate((self.main, *streams[1:])), return_counts=True)
        firsts = np.cumsum(counts) - counts
        self.first: dict[int, int] = dict(zip(found.tolist(), firsts.tolist(), strict=True))
        self.count: dict[int, int] = dict(zip(found.tolist(), counts.tolist(), strict=True))
        turns = [firsts[np.searchsorted(found, sequence)] + nth_of_each(sequence) for sequence in streams]
        self.begins = np.full(int(counts.sum()), -1, np.int64)
        self.ends = np.full(len(self.begins), NEVER, np.int64)
        if turns:
            self.begins[turns[0]] = 2 * np.arange(len(self.main))
            self.ends[turns[0]] = self.begins[turns[0]] + 1
        if len(turns) > 1:
            self._follow(turns, streams)

    def _follow(self, turns: Sequence[Integers], streams: Sequence[Integers]) -> None:
        """When turns of other streams are issued at the earliest and done at the latest."""
        is_main = np.zeros(len(self.begins), np.bool_)
        is_main[turns[0]] = True
        others = {actor for sequence in streams[1:] for actor in np.unique(sequence).tolist()}
        writers, readers = self._edges(others)
        position = np.empty(len(self.begins), np.int64)
        for sequence in turns:
            position[sequence] = np.arange(len(sequence))
        of_stream = np.empty(len(self.begins), np.int64)
        for number, sequence in enumerate(turns):
            of_stream[sequence] = number
        known = np.where(is_main, self.ends, self.begins)
        self._relax(known, readers, writers, of_stream, position, turns, forward=True)
        self.begins[~is_main] = known[~is_main]
        known = np.where(is_main, self.begins, self.ends)
        self._relax(known, writers, readers, of_stream, position, turns, forward=False)
        self.ends[~is_main] = known[~is_main]

    def _relax(
        self,
        known: Integers,
        turn: Integers,
        after: Integers,
        of_stream: Integers,
        position: Integers,
        turns: Sequence[Integers],
        *,
        forward: bool,
    ) -> None:
        """Move the times of other streams' turns: none is before those that it is `after`, or that precede it there.

        Backwards, none is after those, or those that follow it.
        """
        edges = [np.flatnonzero(of_stream[turn] == number) for number in range(len(turns))]
        moved = True
        while moved:
            moved = False
            for found, sequence in zip(edges[1:], turns[1:], strict=True):
                times = known[sequence]
                if forward:
                    np.maximum.at(times, position[turn[found]], known[after[found]])
                    times = np.maximum.accumulate(times)
                else:
                    np.minimum.at(times, position[turn[found]], known[after[found]])
                    times = np.minimum.accumulate(times[::-1])[::-1]
                moved |= not np.array_equal(times, known[sequence])
                known[sequence] = times

    def _edges(self, others: Container[int]) -> tuple[Integers, Integers]:
        """Pairs of turns, one of which at least is of another stream: the one that finished a piece, and its reader."""
        writers, readers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for actor, count in self.count.items():
            for port in self.program.actors[actor].reads:
                if self.program.registers[port.register].initial:
                    continue
                for producer, written in self.users[port.register].producers:
                    if producer in self.count and (actor in others or producer in others):
                        number = np.arange(count)
                        last = (number // self._acts_per_piece(port) + 1) * self._acts_per_piece(written) - 1
                        there = last < self.count[producer]
                        writers.append(self.first[producer] + last[there])
                        readers.append(self.first[actor] + number[there])
        return np.concatenate(writers), np.concatenate(readers)

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
                    mine = [lives[member][block] for member in chain]
                    union = mine[0] if len(mine) == 1 else _merged(np.concatenate(mine))
                    found.append(Occupant(tuple((member, block) for member in chain), union))
        return found

    def _times(self, times: Integers, actor: int, numbers: Integers, missing: int) -> Integers:
        """Those of some acts of an actor, given in order; all `missing` where one is not replayed."""
        if numbers[-1] >= self.count.get(actor, 0):
            return np.full(len(numbers), missing, np.int64)
        return times[self.first[actor] + numbers]

    def _lives(self, register: int) -> list[Lives]:
        """By block: when it is in use."""
        users, blocks = self.users[register], self.program.registers[register].blocks
        always = [np.array([(0, self.horizon)], np.int64)] * blocks
        if not users.producers or (self.short is not None and blocks > 1):
            return always
        ((producer, written),) = users.producers
        piece = np.arange(self._acts(producer) // self._acts_per_piece(written))
        begin = self._times(self.begins, producer, piece * self._acts_per_piece(written), -1)
        end = begin + 1
        for actor, port in ((producer, written), *users.consumers):
            last = (piece + 1) * self._acts_per_piece(port) - 1
            end = np.maximum(end, self._times(self.ends, actor, last, NEVER))
        if begin.min() < 0 or end.max() > self.horizon:
            return always
        lives = np.stack((begin, end), axis=1)
        apart = math.gcd(blocks, len(piece))  # over all steps, a block holds every so manieth piece
        in_turn = (begin[1:] > begin[:-1]).all() and (begin[apart:] >= end[:-apart]).all()
        unions = [lives[first::apart] if in_turn else _merged(lives[first::apart]) for first in range(apart)]
        return [unions[block % apart] for block in range(blocks)]

    def _taken(self, lives: Mapping[int, Sequence[Lives]]) -> dict[int, int]:
        """Register -> the one whose blocks it takes over, by acts of the main stream."""
        taken: dict[int, int] = {}
        sources: set[int] = set()
        for actor in dict.fromkeys(self.main.tolist()):
            task = self.program.actors[actor].task
            if isinstance(task, OpTask) and task.in_place and task.outputs:
                ports = (*self.program.actors[actor].reads, *self.program.actors[actor].writes)
                target = ports[task.outputs[0]]
                others = {ports[i].register for p, i in enumerate(task.inputs) if p not in task.in_place}
                for position in task.in_place:
                    source = ports[task.inputs[position]]
                    free = source.register not in others and source.register not in sources
                    if free and self._ends_in(source, target, actor, lives):
                        taken[target.register] = source.register
                        sources.add(source.register)
                        break
        return taken

    def _ends_in(self, source: Port, target: Port, actor: int, lives: Mapping[int, Sequence[Lives]]) -> bool:
        """Whether an actor is the last to read every piece of `source`, and writes as the same piece of `target`."""
        if source.register not in lives or target.register not in lives:
            return False
        one, other = self.program.registers[source.register], self.program.registers[target.register]
        alike = (one.dtype, one.block_nbytes, one.blocks) == (other.dtype, other.block_nbytes, other.blocks)
        alike = alike and one.ragged is other.ragged is None
        if not alike or (source.acts_per_piece, target.acts_per_piece) != (1, 1):
            return False
        first = self.first[actor]
        turns = self.ends[first : first + self._acts(actor)]
        before, after = lives[source.register], lives[target.register]
        if before[0][0, 1] < turns[0] or before[0][-1, 1] > turns[-1] or after[0][0, 0] < turns[0] - 1:
            return False
        ends, begins = np.concatenate(before)[:, 1], np.concatenate(after)[:, 0]
        return np.array_equal(np.unique(ends), turns) and np.array_equal(np.unique(begins), turns - 1)


def nth_of_each(sequence: Integers) -> Integers:
    """For every entry of a sequence, how many equal ones precede it."""
    order = np.argsort(sequence, kind="stable")
    begins = np.flatnonzero(np.diff(sequence[order], prepend=-1))
    found = np.empty(len(sequence), np.int64)
    found[order] = np.arange(len(sequence)) - np.repeat(begins, np.diff(begins, append=len(sequence)))
    return found


def _chain(register: int, followers: Mapping[int, int]) -> Iterator[int]:
    yield register
    while register in followers:
        register = followers[register]
        yield register


def _merged(lives: Lives) -> Lives:
    """The union of intervals, in order."""
    begin, end = lives[np.argsort(lives[:, 0], kind="stable")].T
    until = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], begin[1:] >= until[:-1])))
    return np.stack((begin[first], until[np.append(first[1:], len(until)) - 1]), axis=1)
