"""Feed: the actors that read and decode micro-batches ahead of what loads them.

    read --raw--> decode --decoded--> load --input--> the ops of the step

Each loader of a program has a reader and a decoder, and between any two of the three a register of some blocks. So
credits alone say how far a feed runs ahead, across steps, too: as many micro-batches as it has blocks wait in either
register. Each reader and each decoder has a stream of its own, so that no input waits for another.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.program.program import ActKind, Port, Program, Register, Stream, Work
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType

BLOCKS = 2
"""Micro-batches that wait in a register of a feed: one is taken while the next one is made."""


def fed(program: Program, *, blocks: int = BLOCKS, read_ns: int = 0, decode_ns: int = 0) -> Program:
    """A program whose loaders are fed: each act of theirs waits for one that reads and one that decodes.

    `read_ns` and `decode_ns` are how long an act of each takes. What lies between them is not counted as memory.
    """
    registers, actors = list(program.registers), list(program.actors)
    streams = list(program.streams)
    for index, loader in enumerate(program.actors):
        if loader.kind is not ActKind.LOAD:
            continue
        ports = []
        for what in ("raw", "decoded"):
            ports.append(Port(len(registers)))
            name, offsets = f"{what} {loader.name}", (0,) * blocks
            registers.append(
                Register(name, loader.rank, (0,), DType.FLOAT32, blocks, offsets=offsets, space=Space.HOST)
            )
        raw, decoded = ports
        actors[index] = replace(loader, reads=(*loader.reads, decoded))
        for half, reads, writes, time_ns in (("read", (), (raw,), read_ns), ("decode", (raw,), (decoded,), decode_ns)):
            name = f"{half} {loader.name}"
            streams.append(Stream(loader.rank, name, (len(actors),), dynamic=True))
            actors.append(replace(loader, name=name, reads=reads, writes=writes, work=Work(time_ns), task=None))
    return replace(program, registers=tuple(registers), actors=tuple(actors), streams=tuple(streams))


def feed_of(program: Program, rank: int, *, blocks: int = BLOCKS) -> Program:
    """The feed of one rank's loaders as a program of its own, with what they take and without what they write.

    Its first actors are the loaders, in the program's order, and then reader and decoder of each; its first stream is
    that of the loaders, and the others are those of readers and decoders in the same order.
    """
    loaders = [a for a in program.actors if a.rank == rank and a.kind is ActKind.LOAD]
    alone = tuple(replace(loader, reads=(), writes=(), work=Work()) for loader in loaders)
    streams = (Stream(rank, "load", tuple(range(len(alone))), dynamic=True),) if alone else ()
    return fed(Program(program.ranks, (), alone, streams), blocks=blocks)
