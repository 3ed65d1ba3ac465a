"""What ragged tensors put on the wire: the messages of an all-to-all, by the rows that one device says there are.

Written from the definition: every pair of ranks of which one gives a box to the other tells a count of 8 bytes, and of
the rows in the box each takes 8 bytes for its place and those of its elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from strategy.comm.sent_bytes import sent_nbytes
from strategy.program.program import ActKind, Actor, BoxingTask, Program, Register, TransferTask
from strategy.sbp.tensor import Box

Array = npt.NDArray[Any]
COUNT = PLACE = 8


def moves_by_all_to_alls(program: Program) -> bool:
    """Whether ragged tensors move by all-to-alls of pieces that do not meet alone, so that the bytes are known."""
    for actor in program.actors:
        ragged = bool(actor.reads or actor.writes) and _register(program, actor).ragged is not None
        if ragged and isinstance(actor.task, TransferTask):
            return False
        if ragged and isinstance(actor.task, BoxingTask) and actor.kind.is_communication:
            disjoint = len(set(actor.task.source_boxes)) == len(actor.task.group)
            if actor.kind is not ActKind.ALL_TO_ALL or not disjoint:
                return False
    return True


def _register(program: Program, actor: Actor) -> Register:
    return program.registers[(actor.reads or actor.writes)[0].register]


def routed_bytes(program: Program, values: Mapping[str, Array]) -> tuple[int, ...]:
    """Bytes that every rank sends in one micro-batch whose ragged values, written out, are `values`; no other's."""
    totals = [0] * program.ranks
    for actor in program.actors:
        register = _register(program, actor)
        if register.ragged is not None and isinstance(actor.task, BoxingTask) and actor.kind.is_communication:
            written_out = values[register.name.split(">")[0]]
            totals[actor.rank] += _given(actor.task, actor.rank, register, (written_out != 0).any(axis=-1))
    return tuple(totals)


def dense_bytes(program: Program) -> tuple[int, ...]:
    """Bytes that every rank sends in a step, those of ragged tensors left out."""
    totals = [0] * program.ranks
    for actor in program.actors:
        if isinstance(actor.task, BoxingTask | TransferTask):
            held = _register(program, actor)
            if held.nbytes and held.ragged is None:  # a rank beside an owner has nothing to send
                totals[actor.rank] += actor.acts_per_step * sent_nbytes(actor.kind, actor.task, actor.rank, held.spec)
    return tuple(totals)


def _given(task: BoxingTask, rank: int, register: Register, there: Array) -> int:
    """By one rank, to others: its rows that lie in their boxes."""
    total, mine = 0, task.source_boxes[task.group.index(rank)]
    for other, box in zip(task.group, task.target_boxes, strict=True):
        shared = _meet(mine, box)
        if other != rank and shared is not None:
            index, (begin, end) = tuple(slice(*cut) for cut in shared[:-1]), shared[-1]
            rows = int(there[index].sum())
            total += COUNT + rows * (PLACE + (end - begin) * register.dtype.nbytes)
    return total


def _meet(one: Box, other: Box) -> Box | None:
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return shared if all(begin < end for begin, end in shared) else None
