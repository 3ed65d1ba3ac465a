"""The order of the simulator is the order of the executor, whatever the timing.

Twenty programs here, two hundred by `python -m tests.campaigns order --cases 200`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import DeadlockError
from strategy.layout.schedule import Schedule
from strategy.program.program import Program
from strategy.program.protocol import admit
from tests.campaigns.order import check, exercised, random_pipeline, run_delayed
from tests.support.long_parameters import long_but
from tests.support.monitor import check_trace
from tests.support.random_programs import live_program

COUNT = 20


def program_at(place: int) -> Program:
    return live_program(place, seed=7, resources=False)[1]


@pytest.mark.parametrize("place", long_but(range(COUNT), *range(0, COUNT, 2)))
def test_delays_change_no_order(place: int) -> None:
    program = program_at(place)
    assert list(check(program, range(5))) == []


@pytest.mark.parametrize("seed", range(len(Schedule)))
def test_delays_change_no_schedule(seed: int) -> None:
    assert list(check(random_pipeline(seed), range(2))) == []


def test_the_programs_leave_a_choice() -> None:
    ready = [place for place in range(COUNT) if "several actors ready at once" in set(exercised(program_at(place)))]
    assert len(ready) >= COUNT / 2


def test_another_order_is_noticed() -> None:
    """Where two acts of a stream may swap, a run of the swapped program is no run of the program."""
    noticed = 0
    for program in map(program_at, range(COUNT)):
        other = swapped(program)
        if other is not None:
            noticed += 1
            assert any("out of order" in problem for problem in check_trace(program, run_delayed(other, 0).records))
    assert noticed >= 5


def swapped(program: Program) -> Program | None:
    """The program with two neighbours of a static stream swapped, if some such program does not hang."""
    for index, stream in enumerate(program.streams):
        for at in range(len(stream.sequence) - 1):
            one, two = stream.sequence[at : at + 2]
            if stream.dynamic or one == two:
                continue
            sequence = (*stream.sequence[:at], two, one, *stream.sequence[at + 2 :])
            streams = (*program.streams[:index], replace(stream, sequence=sequence), *program.streams[index + 1 :])
            other = replace(program, streams=streams)
            try:
                admit(other)
            except DeadlockError:
                continue
            return other
    return None
