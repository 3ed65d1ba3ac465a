"""The program builder: what is added is there, under the numbers that adding gave, and is admitted."""

from __future__ import annotations

from simulator.simulate import simulate
from strategy.program.builder import ProgramBuilder
from strategy.program.program import ActKind, Port, Work
from strategy.program.protocol import admit


def two_ranks(acts: int = 3) -> ProgramBuilder:
    """One rank makes what another one takes."""
    build = ProgramBuilder()
    left, arrived = build.register("leaves", 0, blocks=2, elements=5), build.register("arrives", 1, blocks=2)
    make = build.act("make", 0, 10, writes=[left], acts=acts)
    take = build.act("take", 1, 20, reads=[arrived], acts=acts)
    build.channel("0>1", left, arrived, 7, acts=acts)
    build.stream(0, "compute", [make] * acts)
    build.stream(1, "compute", [take] * acts)
    return build


def test_what_was_added_is_there() -> None:
    program = two_ranks().freeze(2, num_micro_batches=3, tokens_per_step=9, resources={"link": 1e9})
    assert [(r.name, r.rank, r.nbytes) for r in program.registers] == [("leaves", 0, 40), ("arrives", 1, 0)]
    make, take, send, receive = program.actors
    assert (make.writes, take.reads) == ((Port(0),), (Port(1),))
    assert (send.rank, send.reads, receive.rank, receive.writes) == (0, (Port(0),), 1, (Port(1),))
    assert {(end.kind, end.rendezvous, end.work) for end in (send, receive)} == {(ActKind.TRANSFER, 0, Work(7))}
    assert [(s.rank, s.name, s.sequence) for s in program.streams] == [
        (0, "0>1", (2, 2, 2)), (1, "0>1", (3, 3, 3)), (0, "compute", (0, 0, 0)), (1, "compute", (1, 1, 1)),
    ]  # fmt: skip
    assert (program.ranks, program.num_micro_batches, program.tokens_per_step) == (2, 3, 9)
    assert program.resources == {"link": 1e9}


def test_it_runs_as_it_was_built() -> None:
    program = two_ranks().freeze(2)
    admit(program)
    assert simulate(program, steps=1).timeline.makespan_ns == 10 + 7 + 3 * 20


def test_a_frozen_program_does_not_grow() -> None:
    build = two_ranks()
    program = build.freeze(2)
    build.stream(0, "more", [build.act("more", 0, 1)])
    assert (len(program.actors), len(program.streams)) == (4, 4)
    assert build.meeting() == 1
