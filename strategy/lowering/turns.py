"""Turns: when every act of a rank's static streams is issued and done, at the worst, replayed from one step.

Time is that of the rank's *main* stream, the longest static one: its i-th act is issued at 2i and done at 2i + 1. An
act of another static stream is issued, at the earliest, when the last main act is done that it is known to follow, and
is known to be done when a main act is issued that follows it; what follows what is the order within streams, from
writers to readers, and what ranks hear of one another (`vector_clocks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from strategy.lowering.arena import Integers
from strategy.program.program import Port

Booleans = NDArray[np.bool_]
Known = Mapping[int, tuple[Integers, Integers]]
"""Actor -> (when its acts begin at the earliest, when they are known to be done)."""
NEVER = 2**62


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


class Turns:
    """Of one rank. They are numbered actor by actor: act n of an actor is turn `first` + n.

    Of what no main act tells, the begin is -1 and the end `NEVER`.
    """

    def __init__(self, streams: Sequence[Integers], writes: Uses, reads: Uses, registers: int, heard: Known) -> None:
        """Replay.

        Args:
            streams: the actors of each, in order, the main one first.
            writes: of registers, each by one actor at most.
            reads: of the same.
            registers: how many they are.
            heard: what is known of acts beside what follows here; none is earlier, or later, than by that.
        """
        self.main = streams[0] if streams else np.zeros(0, np.int64)
        self.actors, counts = np.unique(np.concatenate((self.main, *streams[1:])), return_counts=True)
        firsts = np.cumsum(counts) - counts
        self.first, self.count = np.append(firsts, 0), np.append(counts, 0)
        turns = [firsts[np.searchsorted(self.actors, sequence)] + nth_of_each(sequence) for sequence in streams]
        self.begins = np.full(int(counts.sum()), -1, np.int64)
        self.ends = np.full(len(self.begins), NEVER, np.int64)
        for actor in heard.keys() & set(self.actors.tolist()):
            begins, ends = heard[actor]
            own = self.of_actor(actor)
            self.begins[own], self.ends[own] = begins, ends
        if turns:
            self.begins[turns[0]] = 2 * np.arange(len(self.main))
            self.ends[turns[0]] = self.begins[turns[0]] + 1
        if len(turns) > 1:
            edges = self._edges(np.unique(np.concatenate(streams[1:])), writes, reads, registers)
            self._follow(turns, *edges)

    def positions(self, actors: Integers) -> Integers:
        """Where actors stand in `actors`, and so in `first` and `count`, whose last is of those that do not."""
        found = np.searchsorted(self.actors, actors)
        return np.where(np.append(self.actors, -1)[found] == actors, found, len(self.actors))

    def of_actor(self, actor: int) -> slice:
        """The turns of an actor."""
        place = int(np.searchsorted(self.actors, actor))
        return slice(int(self.first[place]), int(self.first[place] + self.count[place]))

    def _follow(self, turns: Sequence[Integers], writers: Integers, readers: Integers) -> None:
        """When turns of other streams are issued at the earliest and done at the latest."""
        is_main = np.zeros(len(self.begins), np.bool_)
        is_main[turns[0]] = True
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

    def _edges(self, others: Integers, writes: Uses, reads: Uses, registers: int) -> tuple[Integers, Integers]:
        """Pairs of turns, one of which at least is of another stream: the one that finished a piece, and its reader."""
        producer, written = np.full(registers, -1, np.int64), np.ones(registers, np.int64)
        producer[writes.register], written[writes.register] = writes.actor, writes.share
        reads = reads[np.isin(reads.actor, others) | np.isin(producer[reads.register], others)]
        reader, writer = self.positions(reads.actor), self.positions(producer[reads.register])
        read, number = numbered(self.count[reader])
        last = (number // reads.share[read] + 1) * written[reads.register[read]] - 1
        there = last < self.count[writer[read]]
        read, number, last = read[there], number[there], last[there]
        return self.first[writer[read]] + last, self.first[reader[read]] + number


def numbered(counts: Integers) -> tuple[Integers, Integers]:
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
