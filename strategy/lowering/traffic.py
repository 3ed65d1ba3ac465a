"""Traffic: the bytes that every rank sends to others in one step of a program."""

from __future__ import annotations

from strategy.comm.sent_bytes import sent_nbytes
from strategy.program.program import BoxingTask, Program, TransferTask


def sent_bytes_per_step(program: Program) -> tuple[int, ...]:
    """Bytes by rank: what the executor's transports must count; of ragged tensors, what is expected."""
    if program.alike:
        return program.sent_bytes_per_step
    totals = [0] * program.ranks
    for actor in program.actors:
        if isinstance(actor.task, BoxingTask | TransferTask):
            ports = actor.reads or actor.writes
            held = program.registers[ports[0].register]
            if held.nbytes:  # a rank beside an owner has nothing to send
                sent = sent_nbytes(actor.kind, actor.task, actor.rank, held.spec)
                totals[actor.rank] += actor.acts_per_step * sent
    return tuple(totals)
