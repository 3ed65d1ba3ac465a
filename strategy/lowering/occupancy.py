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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from strategy.base.budget import UNLIMITED, Budget
from strategy.lowering.arena import Integers, Lives
from strategy.lowering.shortening import Shortening, shortening
from strategy.program.program import OpTask, Port, Program, neighbours

Block = tuple[int, int]
"""A register's index, and which of its blocks."""

Booleans = NDArray[np.bool_]

NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Occupant:
    """Blocks that are one piece of memory, and when it is in use."""

    blocks: tuple[Block, ...]
    lives: Lives


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Ports as arrays: an actor, a register that it uses, and how many of its acts share a piece."""

    actor: Integers
    register: Integers
    share: Integers

    @staticmethod
    def of(ports: Sequence[Sequence[Port]]) -> Uses:
        """Those of all actors, in order."""
        actor = np.repeat(np.arange(len(ports)), np.array([len(some) for some in ports], np.int64))
        register = np.array([port.register for some in ports for port in some], np.int64)
        share = np.array([port.acts_per_piece for some in ports for port in some], np.int64)
        return Uses(actor, register, share)

    def __getitem__(self, some: Integers | Booleans) -> Uses:
        """Some of them."""
        return Uses(self.actor[some], self.register[some], self.share[some])

    def by_rank(self, ranks: Integers, count: int) -> tuple[Uses, ...]:
        """Those of the registers of every rank, in order; `ranks` are those of registers."""
        rank = ranks[self.register]
        order = np.argsort(rank, kind="stable")
        bounds = np.searchsorted(rank[order], np.arange(count + 1)).tolist()
        return tuple(self[order[begin:end]] for begin, end in pairwise(bounds))


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """When the pieces of some registers are in use, register by register.

    Piece `number` of a register is in use from `begin` to `end`; it has `count` of them, from `first` on. What is in
    use all the time has one. Over all steps, a block holds every so manieth piece: `apart`.
    """

    register: Integers
    number: Integers
    begin: Integers
    end: Integers
    count: Integers
    apart: Integers

    @property
    def first(self) -> Integers:
        """By register, where its pieces begin."""
        return np.cumsum(self.count) - self.count

    @property
    def first_row(self) -> Integers:
        """By register, the first of the `apart` rows of pieces that blocks hold."""
        return np.cumsum(self.apart) - self.apart

    def rows(self, owner: Integers) -> Integers:
        """By piece, its row, among those of the register that is the owner of its blocks."""
        return self.first_row[owner[self.register]] + self.number % self.apart[self.register]


def num_ranks(program: Program) -> int:
    """The ranks of a program, counted up to the last that has a register or a stream."""
    registers = max((register.rank for register in program.registers), default=-1)
    streams = max((stream.rank for stream in program.streams), default=-1)
    return max(program.ranks, registers + 1, streams + 1)


@dataclass(frozen=True)
class Occupancy:
    """Of the registers of a program that are no state."""

    program: Program

    def of_rank(self, rank: int, budget: Budget = UNLIMITED) -> list[Occupant]:
        """What is in use when on one rank, in the order of its registers.

        Raises:
            OutOfTimeError: the budget was over before it was done.
        """
        replayed = _Rank(self, rank)
        budget.check()
        return replayed.occupants(budget)

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
    def reads(self) -> tuple[Uses, ...]:
        """Rank -> who reads its registers, actor by actor."""
        return self._uses([actor.reads for actor in self.program.actors])

    @cached_property
    def writes(self) -> tuple[Uses, ...]:
        """Rank -> who writes its registers, one actor at most each."""
        return self._uses([actor.writes for actor in self.program.actors])

    def _uses(self, ports: Sequence[Sequence[Port]]) -> tuple[Uses, ...]:
        ranks = np.array([register.rank for register in self.program.registers], np.int64)
        return Uses.of(ports).by_rank(ranks, num_ranks(self.program))

    @cached_property
    def acts(self) -> Integers:
        """By actor, how often it acts in a step."""
        return np.array([actor.acts_per_step for actor in self.program.actors], np.int64)

    @cached_property
    def blocks(self) -> Integers:
        """By register, how many it has."""
        return np.array([register.blocks for register in self.program.registers], np.int64)

    @cached_property
    def is_state(self) -> Booleans:
        """By register, whether it begins with a piece."""
        return np.array([register.initial > 0 for register in self.program.registers], np.bool_)

    @cached_property
    def block_nbytes(self) -> tuple[int, ...]:
        """By register, the bytes of a block."""
        return tuple([register.block_nbytes for register in self.program.registers])

    @cached_property
    def row_of(self) -> Mapping[int, tuple[int, ...]]:
        """Of the registers that lie next to others (`neighbours`), those that do so together."""
        return {index: row for actor in self.program.actors for row in neighbours(actor) for index in row}

    @property
    def rowed(self) -> frozenset[int]:
        """The registers that lie next to others, whose blocks are shared with none in place."""
        return frozenset(self.row_of)

    @cached_property
    def dynamic(self) -> frozenset[int]:
        """The registers that actors of dynamic streams use."""
        actors = (self.program.actors[a] for s in self.program.streams if s.dynamic for a in s.sequence)
        return frozenset(port.register for actor in actors for port in (*actor.reads, *actor.writes))


class _Rank:
    """The replay of one step of one rank: `begins` and `ends` say when a turn is issued and done, at the worst.

    Turns are numbered actor by actor: act n of an actor is `first` + n. Of what no main act tells, the begin is -1 and
    the end `NEVER`. Registers are those that are no state, by their place in `mine`.
    """

    def __init__(self, occupancy: Occupancy, rank: int) -> None:
        self.occupancy, self.program = occupancy, occupancy.program
        self.short = occupancy.shortenings[rank]
        streams = occupancy.sequences[rank]
        self.main = streams[0] if streams else np.zeros(0, np.int64)
        every = np.array(occupancy.registers_of[rank], np.int64)
        self.mine = every[~occupancy.is_state[every]]
        self.writes, self.reads = (self._of_mine(uses[rank]) for uses in (occupancy.writes, occupancy.reads))
        self.horizon = max(2 * len(self.main), 1)
        self.actors, counts = np.unique(np.concatenate((self.main, *streams[1:])), return_counts=True)
        firsts = np.cumsum(counts) - counts
        self.first, self.count = np.append(firsts, 0), np.append(counts, 0)
        turns = [firsts[np.searchsorted(self.actors, sequence)] + nth_of_each(sequence) for sequence in streams]
        self.begins = np.full(int(counts.sum()), -1, np.int64)
        self.ends = np.full(len(self.begins), NEVER, np.int64)
        if turns:
            self.begins[turns[0]] = 2 * np.arange(len(self.main))
            self.ends[turns[0]] = self.begins[turns[0]] + 1
        if len(turns) > 1:
            self._follow(turns, streams)

    def _of_mine(self, uses: Uses) -> Uses:
        """Uses with registers by their place, and shares of what is replayed."""
        found = uses[~self.occupancy.is_state[uses.register]]
        return Uses(found.actor, np.searchsorted(self.mine, found.register), self._replayed(found.share))

    def _replayed(self, counts: Integers) -> Integers:
        """How many of so many acts are replayed."""
        if self.short is None:
            return counts
        return np.where(counts == self.program.num_micro_batches, self.short.num_micro_batches, counts)

    def _place(self, actors: Integers) -> Integers:
        """Where actors stand in `actors`, and so in `first` and `count`, whose last is of those that do not."""
        found = np.searchsorted(self.actors, actors)
        return np.where(np.append(self.actors, -1)[found] == actors, found, len(self.actors))

    def _follow(self, turns: Sequence[Integers], streams: Sequence[Integers]) -> None:
        """When turns of other streams are issued at the earliest and done at the latest."""
        is_main = np.zeros(len(self.begins), np.bool_)
        is_main[turns[0]] = True
        writers, readers = self._edges(np.unique(np.concatenate(streams[1:])))
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

    def _edges(self, others: Integers) -> tuple[Integers, Integers]:
        """Pairs of turns, one of which at least is of another stream: the one that finished a piece, and its reader."""
        producer, written = np.full(len(self.mine), -1, np.int64), np.ones(len(self.mine), np.int64)
        producer[self.writes.register], written[self.writes.register] = self.writes.actor, self.writes.share
        beside = np.isin(self.reads.actor, others) | np.isin(producer[self.reads.register], others)
        reads = self.reads[beside]
        reader, writer = self._place(reads.actor), self._place(producer[reads.register])
        read, number = _numbered(self.count[reader])
        last = (number // reads.share[read] + 1) * written[reads.register[read]] - 1
        there = last < self.count[writer[read]]
        read, number, last = read[there], number[there], last[there]
        return self.first[writer[read]] + last, self.first[reader[read]] + number

    def occupants(self, budget: Budget) -> list[Occupant]:
        """In the order of registers, those that share a block in place together."""
        pieces = self._pieces()
        budget.check()
        taken = self._taken(pieces)
        budget.check()
        followers = {source: register for register, source in taken.items()}
        chains = [list(_chain(register, followers)) for register in range(len(self.mine)) if register not in taken]
        owner = np.empty(len(self.mine), np.int64)
        for chain in chains:
            owner[chain] = chain[0]
        row, begin, end = _merged(pieces.rows(owner), pieces.begin, pieces.end)
        lives = np.stack((begin, end), axis=1)
        bounds = np.searchsorted(row, np.arange(int(pieces.apart.sum()) + 1)).tolist()
        names, blocks = self.mine.tolist(), self.occupancy.blocks[self.mine].tolist()
        first_row, apart = pieces.first_row.tolist(), pieces.apart.tolist()
        found = []
        for chain in chains:
            members = [names[member] for member in chain]
            for block in range(blocks[chain[0]]):
                at = first_row[chain[0]] + block % apart[chain[0]]
                shared = tuple([(member, block) for member in members])
                found.append(Occupant(shared, lives[bounds[at] : bounds[at + 1]]))
        return found

    def _pieces(self) -> _Pieces:
        """Of all registers."""
        size = len(self.mine)
        producer, share, count = np.full(size, -1, np.int64), np.ones(size, np.int64), np.ones(size, np.int64)
        written = self.writes.register
        producer[written], share[written] = self._place(self.writes.actor), self.writes.share
        count[written] = self._replayed(self.occupancy.acts[self.writes.actor]) // self.writes.share
        blocks = self.occupancy.blocks[self.mine]
        told = producer >= 0  # of the others nothing says when they are in use: they are so all the time
        told &= (count - 1) * share < self.count[producer]
        if self.short is not None:
            told &= blocks == 1
        uses = [(self._place(some.actor), some.register, some.share) for some in (self.writes, self.reads)]
        for user, used, shared in uses:
            told[used[count[used] * shared > self.count[user]]] = False
        count[~told] = 1
        first = np.cumsum(count) - count
        register, number = _numbered(count)
        begin, end = np.zeros(len(register), np.int64), np.full(len(register), self.horizon, np.int64)
        here = told[register]
        turn = self.first[producer][register] + number * share[register]
        begin[here] = self.begins[turn[here]]
        end[here] = begin[here] + 1
        for user, used, shared in uses:
            some = told[used]
            use, nth = _numbered(count[used[some]])
            done = self.ends[self.first[user[some]][use] + (nth + 1) * shared[some][use] - 1]
            np.maximum.at(end, first[used[some]][use] + nth, done)
        told[register[(begin < 0) | (end > self.horizon)]] = False
        count[~told] = 1
        here = told[register]
        begin[~here], end[~here] = 0, self.horizon
        kept = here | (number == 0)
        return _Pieces(register[kept], number[kept], begin[kept], end[kept], count, np.gcd(blocks, count))

    def _taken(self, pieces: _Pieces) -> dict[int, int]:
        """Register -> the one whose blocks it takes over, by acts of the main stream.

        The first of those that take over from one another is written anew as soon as its own piece is read, whoever
        has taken that over: so it must not be, at the earliest, before the last of them is done with.
        """
        candidates = list(self._candidates())
        if not candidates:
            return {}
        actor, source, target = np.array(candidates, np.int64).T
        taken: dict[int, int] = {}
        actors: set[int] = set()
        sources: set[int] = set()
        for index in np.flatnonzero(self._end_in(pieces, actor, source, target)).tolist():
            who, one, other = candidates[index]
            if who not in actors and one not in sources and _ends_in_time(pieces, _first(one, taken), other):
                taken[other] = one
                actors.add(who)
                sources.add(one)
        return taken

    def _candidates(self) -> Iterator[tuple[int, int, int]]:
        """Actors of the main stream, in order, with two registers: what may be written over, and what they write."""
        place = {register: at for at, register in enumerate(self.mine.tolist()) if register not in self.occupancy.rowed}
        nbytes, registers = self.occupancy.block_nbytes, self.program.registers
        found, first_at = np.unique(self.main, return_index=True)
        for index in found[np.argsort(first_at)].tolist():
            actor = self.program.actors[index]
            if not (isinstance(actor.task, OpTask) and actor.task.in_place and actor.task.outputs):
                continue
            task, ports = actor.task, (*actor.reads, *actor.writes)
            target = ports[task.outputs[0]]
            others = {ports[i].register for p, i in enumerate(task.inputs) if p not in task.in_place}
            for position in task.in_place:
                source = ports[task.inputs[position]]
                there = source.register in place and target.register in place and source.register not in others
                if there and (source.acts_per_piece, target.acts_per_piece) == (1, 1):
                    one, other = registers[source.register], registers[target.register]
                    alike = one.dtype is other.dtype and one.blocks == other.blocks
                    alike = alike and nbytes[source.register] == nbytes[target.register]
                    if alike and one.ragged is other.ragged is None:
                        yield index, place[source.register], place[target.register]

    def _end_in(self, pieces: _Pieces, actor: Integers, source: Integers, target: Integers) -> Booleans:
        """Whether actors are the last to read every piece of a `source`, and write as the same piece of a `target`."""
        every = np.arange(len(self.mine))
        row, *_ = _merged(pieces.rows(every), pieces.begin, pieces.end)
        owner = np.repeat(every, pieces.apart)[row]
        apart = np.bincount(owner, minlength=len(every)) == pieces.count
        """Whether no two pieces of a register are in use one right after the other in one block, or at once."""
        place, acts = self._place(actor), self._replayed(self.occupancy.acts[actor])
        found: Booleans = apart[source] & apart[target]
        found &= (pieces.count[source] == acts) & (pieces.count[target] == acts)
        which, number = _numbered(np.where(found, acts, 0))
        done = self.ends[self.first[place[which]] + number]
        for times, register, due in ((pieces.end, source, done), (pieces.begin, target, done - 1)):
            in_order = times[np.lexsort((times, pieces.register))]
            found[which[in_order[pieces.first[register[which]] + number] != due]] = False
        return found


def _numbered(counts: Integers) -> tuple[Integers, Integers]:
    """Each index as often as it counts, and for each the numbers from 0."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def nth_of_each(sequence: Integers) -> Integers:
    """For every entry of a sequence, how many equal ones precede it."""
    order = np.argsort(sequence, kind="stable")
    begins = np.flatnonzero(np.diff(sequence[order], prepend=-1))
    found = np.empty(len(sequence), np.int64)
    found[order] = np.arange(len(sequence)) - np.repeat(begins, np.diff(begins, append=len(sequence)))
    return found


def _first(register: int, taken: Mapping[int, int]) -> int:
    """Whose blocks a register has in the end."""
    while register in taken:
        register = taken[register]
    return register


def _ends_in_time(pieces: _Pieces, first: int, last: int) -> bool:
    """Whether every piece of `last` ends before the next piece of `first` in its block begins; they have as many."""
    begin, end = (
        times[pieces.first[one] :][: pieces.count[one]] for times, one in ((pieces.begin, first), (pieces.end, last))
    )
    apart = int(pieces.apart[first])
    return bool((end[:-apart] <= begin[apart:]).all())


def _chain(register: int, followers: Mapping[int, int]) -> Iterator[int]:
    yield register
    while register in followers:
        register = followers[register]
        yield register


def _merged(row: Integers, begin: Integers, end: Integers) -> tuple[Integers, Integers, Integers]:
    """The union of the intervals of every row, in order: rows, begins and ends; none is before 0."""
    if not row.size:
        return row, begin, end
    apart = int(end.max(initial=0)) + 1
    order = np.argsort(row * apart + begin, kind="stable")
    row, begin = row[order], begin[order]
    until = np.maximum.accumulate(row * apart + end[order])
    first = np.flatnonzero(row * apart + begin >= np.concatenate(([0], until[:-1])))
    last = np.append(first[1:], len(until)) - 1
    return row[first], begin[first], until[last] - row[first] * apart
