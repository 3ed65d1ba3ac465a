"""The memory of a plan is what its ranks allocate, to the byte, and no block is used when another has its place.

A dozen plans here, five hundred by `python -m tests.campaigns memory --cases 500`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor.train import program_of
from strategy.lowering.occupancy import Occupancy
from strategy.program import Program
from tests.campaigns.memory import check, random_case
from tests.campaigns.transparency import text_of
from tests.poison import Poison
from tests.small_plans import train


@pytest.mark.parametrize("number", range(12))
def test_ranks_allocate_what_is_planned(number: int) -> None:
    case = random_case(number)
    assert list(check(case, program_of(case.plan))) == []


def test_a_place_that_is_given_away_too_soon_is_noticed() -> None:
    """One block moved onto another that is in use at the same time spoils the results."""
    plan = random_case(3).plan
    spoilt = _overlapped(program_of(plan))
    poison = [Poison(spoilt) for _ in range(plan.ranks)]
    trained = train(plan, text_of(plan), steps=2, program=spoilt, poison=poison)
    assert any(np.isnan(report.loss) for report in trained.reports)


def _overlapped(program: Program) -> Program:
    """The largest block that shares memory over time, moved onto another as large that is in use with it."""
    occupants = Occupancy(program).of_rank(0)
    for one in occupants:
        for other in occupants:
            register, target = one.blocks[0][0], other.blocks[0][0]
            moved, stays = program.registers[register], program.registers[target]
            alike = moved.blocks == stays.blocks == 1 and moved.shape == stays.shape and moved.dtype == stays.dtype
            follows = one.lives[0][0] < other.lives[0][0] < one.lives[0][1] < other.lives[0][1]
            if alike and follows and len(moved.shape) > 1 and moved.dtype.is_float:
                spoilt = list(program.registers)
                spoilt[register] = replace(moved, offsets=stays.offsets)
                return replace(program, registers=tuple(spoilt))
    raise AssertionError("no two blocks are in use together")
