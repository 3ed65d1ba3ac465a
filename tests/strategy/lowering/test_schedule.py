"""Schedules as the tables that the papers print."""

from __future__ import annotations

import pytest

from strategy.graph import Phase
from strategy.lowering.schedule import Schedule, chunk_order, in_flight

GPIPE = """
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
"""
ONE_F_ONE_B = """
0 1 2 3 (0) 4 (1) 5 (2) 6 (3) 7 (4) (5) (6) (7)
0 1 2 (0) 3 (1) 4 (2) 5 (3) 6 (4) 7 (5) (6) (7)
0 1 (0) 2 (1) 3 (2) 4 (3) 5 (4) 6 (5) 7 (6) (7)
0 (0) 1 (1) 2 (2) 3 (3) 4 (4) 5 (5) 6 (6) 7 (7)
"""


def row(schedule: str, stages: int, stage: int, micro_batches: int) -> str:
    chunks = chunk_order(Schedule(schedule), stages, stage, micro_batches)
    return " ".join(f"{c.micro_batch}" if c.phase is Phase.FORWARD else f"({c.micro_batch})" for c in chunks)


@pytest.mark.parametrize(("schedule", "table"), [("gpipe", GPIPE), ("1f1b", ONE_F_ONE_B)])
def test_tables(schedule: str, table: str) -> None:
    assert [row(schedule, 4, stage, 8) for stage in range(4)] == table.strip().splitlines()


@pytest.mark.parametrize(("schedule", "caps"), [("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1])])
def test_micro_batches_in_flight(schedule: str, caps: list[int]) -> None:
    assert [in_flight(Schedule(schedule), 4, stage, 8) for stage in range(4)] == caps


@pytest.mark.parametrize("schedule", list(Schedule))
def test_one_stage_alone_keeps_one_micro_batch(schedule: Schedule) -> None:
    assert row(schedule, 1, 0, 3) == "0 (0) 1 (1) 2 (2)"
    assert in_flight(schedule, 1, 0, 3) == 1


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7])
def test_every_chunk_once_and_never_more_in_flight(schedule: Schedule, stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        chunks = list(chunk_order(schedule, stages, stage, micro_batches))
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert [c.micro_batch for c in chunks if c.phase is phase] == list(range(micro_batches))
        flying = most = 0
        for chunk in chunks:
            flying += 1 if chunk.phase is Phase.FORWARD else -1
            assert flying >= 0
            most = max(most, flying)
        assert most == in_flight(schedule, stages, stage, micro_batches)
