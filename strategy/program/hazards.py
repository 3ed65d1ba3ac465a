"""Hazards: which acts have used memory before an act writes it, under whatever name.

Blocks share places over time. Where the order of a stream, and the credits of a register, do not say that a place is
free, the memory plan may know it by messages (`lowering.vector_clocks`): an answer has come, so what it answers has
been read. Streams of a device know nothing of that; they wait for the acts themselves, which are over by then.

    block 0 of a   | written by 1 | read by 2 |
    block 1 of b                                | written by 3, behind 1 and 2 |        in the same place
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from strategy.program.program import Program
from strategy.sbp.placement import Space

Block = tuple[int, int]
"""A register's index, and which of its blocks."""
ActNumber = tuple[int, int]
"""An actor, and which of its acts."""
ANY = -1
"""Of the blocks of a register that other pieces take in every step: what is waited for is the same in every step."""


class Hazards:
    """The latest users of every block of a rank, and the blocks that lie in one place with others."""

    def __init__(self, program: Program, rank: int) -> None:
        self._turning = _turning(program, rank)
        self._beside = self._of_turning(_beside(program, rank))
        self._users: dict[Block, dict[int, ActNumber]] = defaultdict(dict)
        """By stream, the last act that used what is in the block."""

    def before(self, written: Iterable[Block], stream: int) -> Iterator[ActNumber]:
        """The last acts of other streams that used what lay where these blocks lie."""
        for block in map(self._named, written):
            for other in self._beside.get(block, ()):
                for by, act in self._users[other].items():
                    if by != stream:
                        yield act

    def use(self, blocks: Iterable[Block], stream: int, act: ActNumber) -> None:
        """An act uses blocks; what used them before on its stream is over when it begins."""
        for block in map(self._named, blocks):
            if block in self._beside:
                self._users[block][stream] = act

    @property
    def in_turn(self) -> frozenset[int]:
        """The registers whose blocks other pieces take in every step, and those that share bytes with them."""
        beside = {
            other for (register, _), others in self._beside.items() if register in self._turning for other in others
        }
        return self._turning | {register for register, _ in beside}

    def users(self) -> Iterator[tuple[Block, int, ActNumber]]:
        """The last act by block and stream."""
        for block, by_stream in self._users.items():
            for stream, act in by_stream.items():
                yield block, stream, act

    def _named(self, block: Block) -> Block:
        return (block[0], ANY) if block[0] in self._turning else block

    def _of_turning(self, beside: Mapping[Block, Sequence[Block]]) -> dict[Block, tuple[Block, ...]]:
        found = defaultdict[Block, dict[Block, None]](dict)
        for block, others in beside.items():
            found[self._named(block)].update(dict.fromkeys(map(self._named, others)))
        return {block: tuple(others) for block, others in found.items()}


def _turning(program: Program, rank: int) -> frozenset[int]:
    """The registers of a rank whose blocks do not divide the pieces of a step.

    What is waited for ahead of one block is waited for ahead of all: in some steps a wait is for what is over anyway.
    """
    return frozenset(
        port.register
        for actor in program.actors
        if actor.rank == rank
        for port in actor.writes
        if actor.acts_per_step // port.acts_per_piece % program.registers[port.register].blocks
    )


def _beside(program: Program, rank: int) -> dict[Block, tuple[Block, ...]]:
    """Block -> those that share bytes with it, where there are any."""
    found = defaultdict[Block, list[Block]](list)
    for space in Space:
        there: list[tuple[int, Block]] = []
        for begin, end, block in _places(program, rank, space):
            there = [one for one in there if one[0] > begin]
            for _, other in there:
                found[block].append(other)
                found[other].append(block)
            there.append((end, block))
    return {block: tuple(others) for block, others in found.items()}


def _places(program: Program, rank: int, space: Space) -> list[tuple[int, int, Block]]:
    """Where the blocks of a rank in one memory begin and end, in order; state lies by itself."""
    return sorted(
        (offset, offset + register.block_nbytes, (index, number))
        for index, register in enumerate(program.registers)
        if register.rank == rank and register.space is space and not register.initial
        for number, offset in enumerate(register.offsets)
    )
