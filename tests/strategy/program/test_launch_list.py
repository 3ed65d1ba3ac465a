"""Launch lists: every act of a step once, in an order that credits allow, collectives in one order on all ranks."""

from __future__ import annotations

from collections import Counter

import pytest

from strategy.base.errors import DeadlockError
from strategy.program.launch_list import launch_lists
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream
from strategy.program.protocol import Protocol
from strategy.sbp.tensor import DType
from tests.support.random_programs import live_program


@pytest.mark.parametrize("place", range(12))
def test_a_list_serves_every_step(place: int) -> None:
    _, program = live_program(place, seed=400, resources=False)
    lists = launch_lists(program)
    for rank, found in enumerate(lists):
        wanted = {
            index: a.acts_per_step for index, a in enumerate(program.actors) if a.rank == rank and a.acts_per_step
        }
        assert Counter(found) == Counter(wanted)
        protocol = Protocol(program, steps=3, ranks=[rank])
        for actor in found * 3:
            assert protocol.may_act(actor)
            stream = protocol.stream_of(actor)
            assert program.streams[stream].dynamic or protocol.expected(stream) == actor
            protocol.done(protocol.issue(stream, actor))


@pytest.mark.parametrize("place", range(12))
def test_ranks_launch_what_they_meet_in_in_one_order(place: int) -> None:
    _, program = live_program(place, seed=500, resources=False)
    met = [[n for a in found if (n := program.actors[a].rendezvous) is not None] for found in launch_lists(program)]
    for one in range(program.ranks):
        for other in range(one):
            both = set(met[one]) & set(met[other])
            assert [n for n in met[one] if n in both] == [n for n in met[other] if n in both]


def test_a_program_that_hangs_has_none() -> None:
    registers = tuple(Register(f"r{i}", 0, (1,), DType.FLOAT32) for i in range(2))
    actors = (
        Actor("a", 0, ActKind.COMPUTE, (Port(1),), (Port(0),)),
        Actor("b", 0, ActKind.COMPUTE, (Port(0),), (Port(1),)),
    )
    with pytest.raises(DeadlockError):
        launch_lists(Program(1, registers, actors, (Stream(0, "s", (0,)), Stream(0, "t", (1,)))))
