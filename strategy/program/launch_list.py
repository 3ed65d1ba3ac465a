"""Launch list: in which order the host of a rank hands the acts of a step to its device.

It is the order in which admission replays the program, on every rank that rank's part of it. So all collectives are
launched in one order over all communicators of all ranks, as NCCL asks for, whatever the timing; and whoever launches
an act, or waits for one that stands before it, waits for none that stands behind. After one step every counter of the
protocol has moved by one step's worth: the list of a step serves every step.
"""

from __future__ import annotations

from strategy.program.program import Program
from strategy.program.protocol import check_consistent, replay

LaunchList = tuple[int, ...]
"""The actors of one rank, as often as they act in a step, in the order of launching."""


def launch_lists(program: Program) -> tuple[LaunchList, ...]:
    """The launch list of every rank of a program.

    Raises:
        DeadlockError: the program hangs.
        PlanError: an actor, stream or register is inconsistent.
    """
    check_consistent(program)
    found: list[list[int]] = [[] for _ in range(program.ranks)]
    for acts in replay(program, steps=1):
        for act in acts:
            found[program.actors[act.actor].rank].append(act.actor)
    return tuple(map(tuple, found))
