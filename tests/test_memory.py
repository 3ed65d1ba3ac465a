"""The memory of a plan is what its ranks allocate, to the byte, and no block is used when another has its place.

Six plans here, five hundred by `python -m tests.campaigns memory --cases 500`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.train import program_of
from strategy.lowering.occupancy import Occupancy
from strategy.passes.training import Training
from strategy.program.program import Program
from tests.campaigns.memory import check, random_case
from tests.campaigns.transparency import differences, text_of
from tests.support.long_parameters import long_but
from tests.support.poison import Poison
from tests.support.random_plans import PlanCase
from tests.support.small_plans import config_of, deduced_plan, in_float64, request, train


@pytest.mark.parametrize("number", long_but(range(6), 1, 2, 3, 4, 5))
def test_ranks_allocate_what_is_planned(number: int) -> None:
    assert list(check(random_case(number))) == []


@pytest.mark.parametrize("stage", long_but(range(4), 3))
def test_ranks_allocate_what_is_planned_where_collectives_run_beside_each_other(stage: int) -> None:
    """Two nodes of two ranks: what a stream may do early, for no other holds it up, is in use early."""
    training = in_float64(Training(global_batch=8, num_micro_batches=2))
    config = config_of(training, dp=2, tp=2, zero_stage=stage, zero_min_size=8)
    plan = deduced_plan(request(4, training, backend="cupy", per_node=2), config, ("data", "tensor"))
    assert list(check(PlanCase(plan, "deduced", program_of(plan)))) == []


def test_a_place_that_is_given_away_too_soon_is_noticed() -> None:
    """One block moved onto another that is in use at the same time spoils the results."""
    training = in_float64(Training(global_batch=4, num_micro_batches=2))
    plan = deduced_plan(request(2, training), config_of(training, tp=2), ("data", "tensor"))
    spoilt = _overlapped(program_of(plan))
    poison = [Poison(spoilt) for _ in range(plan.ranks)]
    trained = train(plan, text_of(plan), steps=2, program=spoilt, poison=poison)
    assert list(differences(plan, trained, steps=2)) != []


def _overlapped(program: Program) -> Program:
    """The largest block that shares memory over time, moved onto another as large that is in use with it."""
    occupants = [occupant for occupant in Occupancy(program).of_rank(0) if len(occupant.blocks) == 1]
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
