"""Unaliased memory: a program whose blocks share no memory, so that every tensor can be read when the step is over."""

from __future__ import annotations

from dataclasses import replace

from strategy.lowering.memory import aligned
from strategy.program.program import Program


def unaliased(program: Program) -> Program:
    """The program with all blocks of a rank one after another."""
    ends: dict[int, int] = {}
    registers = []
    for register in program.registers:
        begin, size = ends.get(register.rank, 0), aligned(register.block_nbytes)
        count = 0 if register.initial else register.blocks
        registers.append(replace(register, offsets=tuple(begin + block * size for block in range(count))))
        ends[register.rank] = begin + count * size
    return replace(program, registers=tuple(registers))
