"""A program is admitted just if no interleaving of its acts hangs.

Four hundred programs here, two thousand by `python -m tests.campaigns admission --cases 2000`.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream
from strategy.sbp.tensor import DType
from tests.campaigns.admission import check, run
from tests.support.interleavings import ends


def test_admission_agrees_with_every_interleaving() -> None:
    outcome = run(400, 0)
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_the_explorer_knows_a_hang_from_a_run() -> None:
    """A ring of two: without a piece to begin with, each waits for the other."""
    registers = tuple(Register(name, 0, (1,), DType.FLOAT32) for name in ("there", "back"))
    actors = (
        Actor("a", 0, ActKind.COMPUTE, (Port(1),), (Port(0),)),
        Actor("b", 0, ActKind.COMPUTE, (Port(0),), (Port(1),)),
    )
    ring = Program(1, registers, actors, (Stream(0, "s", (0,)), Stream(0, "t", (1,))))
    started = replace(ring, registers=(registers[0], replace(registers[1], initial=1)))
    assert (ends(ring, 2), ends(started, 2)) == ({False}, {True})
    assert check(ring) == ("hangs", [])
    assert check(started) == ("admitted", [])


def test_where_two_meet_in_dynamic_streams_timing_decides() -> None:
    """Each rank takes the one of two that is ready first, and may then wait for the other's other."""
    actors = tuple(Actor(f"m{n}", rank, ActKind.ALL_REDUCE, rendezvous=n) for rank in range(2) for n in range(2))
    program = Program(2, (), actors, (Stream(0, "s", (0, 1), dynamic=True), Stream(1, "t", (2, 3), dynamic=True)))
    assert check(program) == ("refused for a written reason", [])
