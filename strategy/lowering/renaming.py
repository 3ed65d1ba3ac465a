"""Renaming: a block of its own for every micro-batch, where that takes less memory than blocks in turn.

Where micro-batches take the blocks of a register in turn, two blocks that are once in use together lie apart for good,
though few of all may be in use at any one time. With a block each, what lies apart is what is in use at once (modulo
variable expansion; Lam 1988, Software Pipelining, section 2.3):

    saved, lap 0   | 0 | 0 1 | 1 . | . . | 2 | ...         in turn: block 0 of lap 0 meets both blocks of lap 1, one
    saved, lap 1   | . | .   | 0   | 0 1 | 1 | ...         after the other: of two laps, four places

Blocks are credits, too. Where what writes a register and reads it has a fixed place among the acts of its rank, that
order says all that they would. What comes from other stages has none: it may arrive as soon as there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strategy.lowering.occupancy import Occupancy
from strategy.program.program import ActKind, OpTask, Program

MOST_BLOCKS = 64
"""Of so many micro-batches at most every one has its own block; of more, as many as divide them."""
MOST_SINGLE = 6000
"""So many blocks in place of single ones are placed in some tenths of a second."""


def renamed(occupancy: Occupancy, *, single: bool = False) -> Program:
    """The program with a block for every micro-batch in the registers that only acts in a fixed order use.

    Two registers that may be one in place have as many blocks as each other, before and afterwards.

    Args:
        occupancy: of the program.
        single: whether registers of a single block have more, too, the largest of every rank that only ops use.
    """
    program = occupancy.program
    count = next(some for some in range(MOST_BLOCKS, 0, -1) if program.num_micro_batches % some == 0)
    roomier = {i for i, register in enumerate(program.registers) if 1 < register.blocks < count}
    if single and count > 1:
        roomier |= _large(occupancy, count)
    roomier -= {i for i, register in enumerate(program.registers) if register.initial}
    roomier -= occupancy.dynamic | occupancy.rowed
    ordered = {actor for stream in program.streams if not stream.dynamic for actor in stream.sequence}
    for index, actor in enumerate(program.actors):
        is_ordered = (
            index in ordered and not actor.kind.waits_outside and actor.acts_per_step == program.num_micro_batches
        )
        is_op = actor.kind is ActKind.COMPUTE
        for port in (*actor.reads, *actor.writes):
            several = program.registers[port.register].blocks > 1
            if not is_ordered or port.acts_per_piece > 1 or not (several or is_op):
                roomier.discard(port.register)
    blocks = [register.blocks for register in program.registers]
    pairs = [(one, other) for one, other in _in_place(program) if blocks[one] == blocks[other]]
    while True:
        unlike = {register for pair in pairs if len(roomier.intersection(pair)) == 1 for register in pair}
        if not unlike & roomier:
            break
        roomier -= unlike
    registers = [replace(one, blocks=count) if i in roomier else one for i, one in enumerate(program.registers)]
    return replace(program, registers=tuple(registers))


def _large(occupancy: Occupancy, count: int) -> set[int]:
    """The largest registers of a single block of every rank: so many as may be had with `count` blocks each."""
    registers, found = occupancy.program.registers, set[int]()
    for mine in occupancy.registers_of:
        single = [i for i in mine if registers[i].blocks == 1 and not registers[i].initial]
        single.sort(key=lambda i: -occupancy.block_nbytes[i])
        found.update(single[: MOST_SINGLE // count])
    return found


def _in_place(program: Program) -> Iterator[tuple[int, int]]:
    """Registers that an act may write over, each with the one that it writes."""
    for actor in program.actors:
        task = actor.task
        if isinstance(task, OpTask) and task.in_place and task.outputs:
            ports = (*actor.reads, *actor.writes)
            for position in task.in_place:
                yield ports[task.inputs[position]].register, ports[task.outputs[0]].register
