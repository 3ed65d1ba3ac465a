"""Admission of small programs and large: whether a program would hang, and whether its acts are taken as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strategy.program import Program
from strategy.protocol import admit, check_consistent

if TYPE_CHECKING:
    from simulator.act_graph import ActGraph

LARGE = 200_000
"""Acts of a step from which on a program of fixed order is simulated so."""


def is_large(program: Program) -> bool:
    """Whether a program is simulated as arrays: many acts, in an order that does not depend on timing."""
    return sum(actor.acts_per_step for actor in program.actors) >= LARGE and dynamic_order(program) is None


def dynamic_order(program: Program) -> str | None:
    """Which stream takes its actors in an order that depends on timing; None if none does."""
    for stream in program.streams:
        found = len(set(stream.sequence)) if stream.dynamic else 1
        if found > 1:
            return f"dynamic stream {stream.name} of rank {stream.rank} takes its {found} actors in the order of events"
    return None


def admitted(program: Program) -> ActGraph | None:
    """Refuse a program that would hang; gives the acts of one step, if it is large.

    A step that finishes decides it (`protocol.admit`), and one finishes if no act waits for itself.

    Raises:
        DeadlockError: naming the cycle of waits.
        PlanError: an actor, stream or register is inconsistent.
    """
    if not is_large(program):
        admit(program)
        return None
    from simulator.act_graph import act_graph

    check_consistent(program)
    return act_graph(program, 1)
