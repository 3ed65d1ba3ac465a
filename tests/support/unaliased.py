"""Unaliased memory: a program whose blocks share no memory, so that every tensor can be read when the step is over."""

from __future__ import annotations

from dataclasses import replace

from strategy.lowering.memory import aligned
from strategy.program.program import Program, neighbours


def unaliased(program: Program) -> Program:
    """The program with all blocks of a rank one after another; those that a collective takes as one without a gap."""
    rows = {row[0]: row for actor in program.actors for row in neighbours(actor)}
    inside = {index for row in rows.values() for index in row[1:]}
    ends: dict[int, int] = {}
    offsets: dict[int, tuple[int, ...]] = {}
    for first, register in enumerate(program.registers):
        if first in inside:
            continue
        at = ends.get(register.rank, 0)
        for index in rows.get(first, (first,)):
            mine = program.registers[index]
            count, size = (0 if mine.initial else mine.blocks), mine.block_nbytes
            size = size if first in rows else aligned(size)
            offsets[index] = tuple(at + block * size for block in range(count))
            at += count * size
        ends[register.rank] = aligned(at)
    found = [replace(register, offsets=offsets[index]) for index, register in enumerate(program.registers)]
    return replace(program, registers=tuple(found))
