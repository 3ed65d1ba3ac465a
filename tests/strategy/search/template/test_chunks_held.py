"""Chunks held: as many as the order of the chunks says."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.graph.graph import Phase
from strategy.layout.in_flight import Leg, unit_run
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.search.template.chunks_held import HELD, chunks_held

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
        assert held.shape[1:] == (len(HELD), laps)
        for lap in range(laps):
            to_the_last = run.in_flight(Leg(Phase.FORWARD, stage, lap), [Leg(last, stage, lap)])
            assert held[:, 1, lap].max() == to_the_last
        assert held[:, 3].max() == 1
        assert (held[:, 2] == 0).all() or schedule.splits_backward


def test_gradients_of_one_lap_are_exchanged_before_those_of_the_next_are_all_there() -> None:
    held = dict(zip(HELD, chunks_held(Schedule.INTERLEAVED, 4, 0, 4, 2).swapaxes(0, 1), strict=True))
    assert held["saved_bytes"].sum(1).max() == 8
    whole = held["summed_bytes"][:, 1] == 1
    assert held["saved_bytes"][whole].sum(1).max() < 8
    assert (held["behind_bytes"] | held["summed_bytes"]).all()
    assert held["sum_bytes"].sum(1).max() == 1


def test_gradients_of_all_laps_are_added_up_at_once_in_more_than_one_round() -> None:
    held = dict(zip(HELD, chunks_held(Schedule.INTERLEAVED, 4, 0, 8, 2).swapaxes(0, 1), strict=True))
    assert held["sum_bytes"].sum(1).max() == 2


def test_no_row_is_less_than_another() -> None:
    held = chunks_held(Schedule.ZBV, 4, 1, 16, 2).reshape(-1, 2 * len(HELD))
    for i, row in enumerate(held):
        assert not (np.delete(held, i, axis=0) >= row).all(1).any()
