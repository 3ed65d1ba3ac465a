"""Chunks held: as many as the order of the chunks says."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.graph.graph import Phase
from strategy.layout.in_flight import Leg, unit_run
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.search.template.chunks_held import chunks_held

SCHEDULES = [
    (Schedule.ONE_F_ONE_B, 1),
    (Schedule.GPIPE, 1),
    (Schedule.ONEFLOW, 1),
    (Schedule.INTERLEAVED, 2),
    (Schedule.INTERLEAVED, 3),
    (Schedule.ZB_H1, 1),
    (Schedule.ZBV, 2),
]


@pytest.mark.parametrize(("schedule", "laps"), SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 8), (4, 4), (4, 8), (4, 40)])
def test_as_many_wait_as_registers_have_blocks(schedule: Schedule, laps: int, stages: int, count: int) -> None:
    assert schedule_problem(schedule, stages, laps, count) is None
    run = unit_run(schedule, stages, count, laps)
    last = Phase.WEIGHT if schedule.splits_backward else Phase.BACKWARD
    for stage in range(stages):
        held = chunks_held(schedule, stages, stage, count, laps)
        assert held.shape[1:] == (4, laps)
        for lap in range(laps):
            to_the_last = run.in_flight(Leg(Phase.FORWARD, stage, lap), [Leg(last, stage, lap)])
            assert held[:, 1, lap].max() == to_the_last
        assert held[:, 3].max() == 1
        assert (held[:, 2] == 0).all() or schedule.splits_backward


def test_less_is_saved_by_the_time_that_all_gradients_are_added_up() -> None:
    held = chunks_held(Schedule.INTERLEAVED, 4, 0, 4, 2)
    assert held[:, 0].sum(1).max() == 8
    assert held[held[:, 3].sum(1) == 2, 0].sum(1).max() < 8


def test_no_row_is_less_than_another() -> None:
    held = chunks_held(Schedule.ZBV, 4, 1, 16, 2).reshape(-1, 8)
    for i, row in enumerate(held):
        assert not (np.delete(held, i, axis=0) >= row).all(1).any()
