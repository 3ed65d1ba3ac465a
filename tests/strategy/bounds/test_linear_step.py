"""Rows of memory: which stages are looked at, and that none that holds clearly more is left out."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.bounds.linear_step import memory_rows, stage_rows
from strategy.bounds.pipeline_parts import parts_at
from strategy.bounds.point import SAVED, SIZE
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule

FLAT = np.ones(SIZE, np.int64)
"""A point at which every part holds as much of everything."""


def most_held(config: PlanConfig, layers: int, stage: int) -> int:
    return max(int(row @ FLAT) for row in stage_rows(config, layers, stage))


@pytest.mark.parametrize(
    ("layers", "schedule", "pp", "laps", "m"),
    [
        (126, Schedule.INTERLEAVED, 16, 4, 16),
        (70, Schedule.INTERLEAVED, 12, 2, 24),
        (22, Schedule.ONE_F_ONE_B, 4, 1, 8),
    ],
)
def test_where_layers_are_not_dealt_out_evenly_the_fullest_stage_counts(
    layers: int, schedule: Schedule, pp: int, laps: int, m: int
) -> None:
    """The first stage has a layer less than the next one: 126 layers in 64 runs are Llama-3-405B's."""
    config = PlanConfig(1, 1, pp, 1, m, schedule, virtual_stages=laps)
    counts = parts_at(config, layers).sum((1, 2))
    assert counts[0] < counts.max()
    fullest = max(most_held(config, layers, stage) for stage in range(pp))
    assert max(int(row @ FLAT) for row in memory_rows(config, layers)) == fullest
    assert any((row[SAVED] > 0).any() for row in memory_rows(config, layers))


def test_even_stages_have_no_more_rows_than_those_of_both_ends() -> None:
    config = PlanConfig(1, 1, 4, 1, 8, Schedule.ONE_F_ONE_B)
    expected = [*stage_rows(config, 24, 0), *stage_rows(config, 24, 3)]
    assert [row.tolist() for row in memory_rows(config, 24)] == [row.tolist() for row in expected]
