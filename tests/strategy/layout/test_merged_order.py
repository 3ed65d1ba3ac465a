"""The merged order has every stage's order, and no chunk before its input."""

from __future__ import annotations

import pytest

from strategy.layout.in_flight import PHASES
from strategy.layout.merged_order import ROUNDS, MergedOrder, merged_order
from strategy.layout.schedule import Schedule, chunk_order, schedule_problem

MERGED = [
    (schedule, laps)
    for schedule in Schedule
    for laps in (1, 2, 3)
    if schedule is not Schedule.GPIPE and not schedule_problem(schedule, 1, laps, 1)
]


def entries(order: MergedOrder) -> list[int]:
    """All of them, what repeats as often as it does."""
    bounds = zip(order.section_at, order.section_at[1:], order.turns, strict=False)
    return [int(leg) for begin, end, turns in bounds for leg in list(order.legs[begin:end]) * int(turns)]


@pytest.mark.parametrize(("schedule", "laps"), MERGED)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 8])
def test_it_is_the_order_of_every_stage(schedule: Schedule, laps: int, stages: int) -> None:
    counts = {1, 2, stages - 1, stages, stages + 1, 3 * stages, ROUNDS * stages + 1, 2 * ROUNDS * stages, 50}
    for m in sorted(counts - {0}):
        if schedule_problem(schedule, stages, laps, m):
            continue
        order = merged_order(schedule, stages, m, laps)
        done = [0] * (order.stage.size + 1)
        found: list[list[tuple[object, int, int]]] = [[] for _ in range(stages)]
        for leg in entries(order):
            source = int(order.source[leg])
            assert source == order.stage.size or 0 < done[source] - done[leg] <= order.width
            phase = PHASES[leg // (stages * laps)]
            found[order.stage[leg]].append((phase, done[leg], int(order.lap[leg])))
            done[leg] += 1
        for stage in range(stages):
            chunks = chunk_order(schedule, stages, stage, m, laps)
            assert found[stage] == [(c.phase, c.micro_batch, c.lap) for c in chunks]


@pytest.mark.parametrize(("schedule", "laps"), MERGED)
def test_a_million_micro_batches_take_no_more_entries_than_a_few_rounds(schedule: Schedule, laps: int) -> None:
    few, many = (merged_order(schedule, 16, m, laps) for m in (ROUNDS * 16, 2**20))
    assert many.legs.size == few.legs.size
    per_turn = few.section_at[2] - few.section_at[1]
    assert few.legs.size + per_turn * (int(many.turns[1]) - 1) == 2**20 * few.stage.size
