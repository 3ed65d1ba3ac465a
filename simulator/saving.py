"""Saving: a checkpoint as an actor of every rank, which copies the state of training to the host.

    state ---> save (stream of its own, over the link to the host)
      ^------- update waits until its piece is copied

It reads the state that a step begins with, while that step computes: training stands still only where an update has to
wait for the copy, or where copies of offloaded tensors share the link. The host writes out what it has beside training.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features
from strategy.graph.ops.copy import TO_HOST
from strategy.program.program import ActKind, Actor, Port, Program, Stream
from strategy.sbp.placement import Space


def with_saves(program: Program, cost: CostModel) -> Program:
    """The program with a save in every step; what is on the host already is not copied.

    Args:
        program: of a training step.
        cost: of a cluster with hosts.
    """
    state: dict[int, list[int]] = {}
    for index, register in enumerate(program.registers):
        if register.initial and register.space is Space.DEVICE:
            state.setdefault(register.rank, []).append(index)
    actors, streams = list(program.actors), list(program.streams)
    for rank, registers in sorted(state.items()):
        nbytes = sum(program.registers[index].nbytes for index in registers)
        work = cost.work(Features(TO_HOST, 0, nbytes, groups=cost.cluster.groups_of((rank,))), rank, ())
        streams.append(Stream(rank, "save", (len(actors),)))
        actors.append(Actor("save", rank, ActKind.COPY, tuple(map(Port, registers)), work=work))
    return replace(program, actors=tuple(actors), streams=tuple(streams))
