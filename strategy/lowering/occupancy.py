"""Occupancy: when every block of a rank's registers is in use, replayed from one step of its static streams.

Time is that of the rank's *main* stream (`turns`): a block is in use from when the act that writes a piece into it is
issued at the earliest until the act that reads the piece last is known to be done. So a block is free only when what
follows what says so, whatever the timing, and the backend has made streams wait for one another there anyway.

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

import numpy as np

from strategy.base.budget import UNLIMITED, Budget
from strategy.lowering.arena import Integers, Lives
from strategy.lowering.shortening import Shortening, shortening
from strategy.lowering.turns import Booleans, Known, Turns, Uses, numbered
from strategy.lowering.vector_clocks import heard
from strategy.program.program import ActKind, OpTask, Port, Program, neighbours

Block = tuple[int, int]
"""A register's index, and which of its blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Occupant:
    """Blocks that are one piece of memory, and when it is in use."""

    blocks: tuple[Block, ...]
    lives: Lives


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

    def with_blocks(self, program: Program) -> Occupancy:
        """Of the program with other blocks in its registers: all that is known of acts holds for it, too."""
        found = Occupancy(program)
        found.__dict__.update(
            (name, known) for name, known in self.__dict__.items() if name not in ("program", "blocks")
        )
        return found

    def of_rank(self, rank: int, budget: Budget = UNLIMITED) -> list[Occupant]:
        """What is in use when on one rank, in the order of its registers.

        Raises:
            OutOfTimeError: the budget was over before it was done.
        """
        if rank not in self.replayed:
            self.replayed[rank] = _Rank(self, rank, self.heard)
        budget.check()
        return self.replayed[rank].occupants(self.blocks, budget)

    @cached_property
    def replayed(self) -> dict[int, _Rank]:
        """Rank -> its replay, of those that were asked for."""
        return {}

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
    def heard(self) -> Known:
        """Of the transfers that all ranks replay whole: what their messages tell; blocks do not count in it."""
        transfers: dict[int, list[int]] = {}
        ordered = {actor for streams in self.streams_of for i in streams for actor in self.program.streams[i].sequence}
        for index, actor in enumerate(self.program.actors):
            if actor.kind is ActKind.TRANSFER and index in ordered and self.shortenings[actor.rank] is None:
                transfers.setdefault(actor.rank, []).append(index)
        known: dict[int, tuple[Integers, Integers]] = {}
        for rank, mine in transfers.items():
            turns = _Rank(self, rank, {}).turns
            for one in mine:
                own = turns.of_actor(one)
                known[one] = turns.begins[own], turns.ends[own]
        return heard(self.program, known)

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
    """The replay of one step of one rank, however many blocks its registers have.

    Registers are those that are no state, by their place in `mine`.
    """

    def __init__(self, occupancy: Occupancy, rank: int, heard: Known) -> None:
        self.occupancy, self.program = occupancy, occupancy.program
        self.short = occupancy.shortenings[rank]
        every = np.array(occupancy.registers_of[rank], np.int64)
        self.mine = every[~occupancy.is_state[every]]
        self.writes, self.reads = (self._of_mine(uses[rank]) for uses in (occupancy.writes, occupancy.reads))
        self.turns = Turns(occupancy.sequences[rank], self.writes, self.reads, len(self.mine), heard)
        self.horizon = max(2 * len(self.turns.main), 1)

    def _of_mine(self, uses: Uses) -> Uses:
        """Uses with registers by their place, and shares of what is replayed."""
        found = uses[~self.occupancy.is_state[uses.register]]
        return Uses(found.actor, np.searchsorted(self.mine, found.register), self._replayed(found.share))

    def _replayed(self, counts: Integers) -> Integers:
        """How many of so many acts are replayed."""
        if self.short is None:
            return counts
        return np.where(counts == self.program.num_micro_batches, self.short.num_micro_batches, counts)

    def occupants(self, blocks: Integers, budget: Budget) -> list[Occupant]:
        """In the order of registers, those that share a block in place together; `blocks` are how many each has."""
        mine = blocks[self.mine]
        pieces = self._pieces(mine)
        budget.check()
        taken = self._taken(pieces, mine)
        budget.check()
        followers = {source: register for register, source in taken.items()}
        chains = [list(_chain(register, followers)) for register in range(len(self.mine)) if register not in taken]
        owner = np.empty(len(self.mine), np.int64)
        for chain in chains:
            owner[chain] = chain[0]
        row, begin, end = _merged(pieces.rows(owner), pieces.begin, pieces.end)
        lives = np.stack((begin, end), axis=1)
        bounds = np.searchsorted(row, np.arange(int(pieces.apart.sum()) + 1)).tolist()
        names, counts = self.mine.tolist(), mine.tolist()
        first_row, apart = pieces.first_row.tolist(), pieces.apart.tolist()
        found = []
        for chain in chains:
            members, first = [names[member] for member in chain], first_row[chain[0]]
            each = [lives[bounds[at] : bounds[at + 1]] for at in range(first, first + apart[chain[0]])]
            for block in range(counts[chain[0]]):
                shared = tuple([(member, block) for member in members])
                found.append(Occupant(shared, each[block % len(each)]))
        return found

    def _pieces(self, blocks: Integers) -> _Pieces:
        """Of all registers."""
        size = len(self.mine)
        producer, share, count = np.full(size, -1, np.int64), np.ones(size, np.int64), np.ones(size, np.int64)
        written = self.writes.register
        producer[written], share[written] = self.turns.positions(self.writes.actor), self.writes.share
        count[written] = self._replayed(self.occupancy.acts[self.writes.actor]) // self.writes.share
        told = producer >= 0  # of the others nothing says when they are in use: they are so all the time
        told &= (count - 1) * share < self.turns.count[producer]
        if self.short is not None:
            told &= blocks == 1
        uses = [(self.turns.positions(some.actor), some.register, some.share) for some in (self.writes, self.reads)]
        for user, used, shared in uses:
            told[used[count[used] * shared > self.turns.count[user]]] = False
        count[~told] = 1
        first = np.cumsum(count) - count
        register, number = numbered(count)
        begin, end = np.zeros(len(register), np.int64), np.full(len(register), self.horizon, np.int64)
        here = told[register]
        turn = self.turns.first[producer][register] + number * share[register]
        begin[here] = self.turns.begins[turn[here]]
        end[here] = begin[here] + 1
        for user, used, shared in uses:
            some = told[used]
            use, nth = numbered(count[used[some]])
            done = self.turns.ends[self.turns.first[user[some]][use] + (nth + 1) * shared[some][use] - 1]
            np.maximum.at(end, first[used[some]][use] + nth, done)
        told[register[(begin < 0) | (end > self.horizon)]] = False
        count[~told] = 1
        here = told[register]
        begin[~here], end[~here] = 0, self.horizon
        kept = here | (number == 0)
        return _Pieces(register[kept], number[kept], begin[kept], end[kept], count, np.gcd(blocks, count))

    def _taken(self, pieces: _Pieces, blocks: Integers) -> dict[int, int]:
        """Register -> the one whose blocks it takes over, by acts of the main stream.

        The first of those that take over from one another is written anew as soon as its own piece is read, whoever
        has taken that over: so it must not be, at the earliest, before the last of them is done with.
        """
        candidates = list(self._candidates(blocks.tolist()))
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

    def _candidates(self, blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Actors of the main stream, in order, with two registers: what may be written over, and what they write."""
        place = {register: at for at, register in enumerate(self.mine.tolist()) if register not in self.occupancy.rowed}
        nbytes, registers = self.occupancy.block_nbytes, self.program.registers
        found, first_at = np.unique(self.turns.main, return_index=True)
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
                    alike = one.dtype is other.dtype
                    alike = alike and blocks[place[source.register]] == blocks[place[target.register]]
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
        place, acts = self.turns.positions(actor), self._replayed(self.occupancy.acts[actor])
        found: Booleans = apart[source] & apart[target]
        found &= (pieces.count[source] == acts) & (pieces.count[target] == acts)
        which, number = numbered(np.where(found, acts, 0))
        done = self.turns.ends[self.turns.first[place[which]] + number]
        for times, register, due in ((pieces.end, source, done), (pieces.begin, target, done - 1)):
            in_order = times[np.lexsort((times, pieces.register))]
            found[which[in_order[pieces.first[register[which]] + number] != due]] = False
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
