"""Memory that has been used under another name: who must be over before it is written."""

from __future__ import annotations

from strategy.program.hazards import Hazards
from strategy.program.program import Program, Register
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType


def register(name: str, *offsets: int, rank: int = 0, initial: int = 0, space: Space = Space.DEVICE) -> Register:
    """Of blocks of 64 bytes."""
    return Register(
        name, rank, (16,), DType.FLOAT32, blocks=len(offsets), initial=initial, offsets=offsets, space=space
    )


def hazards(*registers: Register) -> Hazards:
    return Hazards(Program(1, registers, (), (), ()), 0)


def test_the_last_users_of_what_lay_there_are_waited_for() -> None:
    found = hazards(register("a", 0, 64), register("b", 128, 64))
    found.use([(0, 1)], stream=1, act=(7, 0))
    found.use([(0, 1)], stream=2, act=(8, 0))
    found.use([(0, 1)], stream=2, act=(8, 1))
    assert list(found.before([(1, 1)], stream=3)) == [(7, 0), (8, 1)]
    assert list(found.before([(1, 1)], stream=2)) == [(7, 0)], "what its own stream did is over"
    assert list(found.before([(1, 0), (0, 0)], stream=3)) == []


def test_what_lies_across_two_has_users_of_both() -> None:
    found = hazards(register("a", 0, 64), register("b", 32))
    found.use([(0, 0)], stream=0, act=(1, 0))
    found.use([(0, 1)], stream=1, act=(2, 0))
    assert sorted(found.before([(1, 0)], stream=2)) == [(1, 0), (2, 0)]


def test_other_memory_is_no_hazard() -> None:
    """Of another rank, of the host, or state, which has no place beside others."""
    others = register("b", 0, rank=1), register("c", 0, space=Space.HOST), register("d", initial=1)
    found = hazards(register("a", 0), *others)
    for index in (1, 2):
        found.use([(index, 0)], stream=1, act=(index, 0))
    assert list(found.before([(0, 0)], stream=0)) == []
