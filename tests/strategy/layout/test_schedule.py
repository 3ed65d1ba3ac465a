"""Schedules as the tables that the papers print."""

from __future__ import annotations

import math

import pytest

from strategy.graph.graph import Phase
from strategy.layout import schedule as schedules
from strategy.layout.in_flight import unit_run
from strategy.layout.schedule import Schedule, at_position, chunk_order, position_of, schedule_problem

TABLES = {
    "gpipe": """
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
0 1 2 3 4 5 6 7 (0) (1) (2) (3) (4) (5) (6) (7)
""",
    "1f1b": """
0 1 2 3 (0) 4 (1) 5 (2) 6 (3) 7 (4) (5) (6) (7)
0 1 2 (0) 3 (1) 4 (2) 5 (3) 6 (4) 7 (5) (6) (7)
0 1 (0) 2 (1) 3 (2) 4 (3) 5 (4) 6 (5) 7 (6) (7)
0 (0) 1 (1) 2 (2) 3 (3) 4 (4) 5 (5) 6 (6) 7 (7)
""",
    # Narayanan et al. 2021, figure 4, with the laps marked: the second is underlined there by a darker shade.
    "interleaved": """
0 1 2 3 0_ 1_ 2_ 3_ 4 5 6 (0_) 7 (1_) 4_ (2_) 5_ (3_) 6_ (0) 7_ (1) (2) (3) (4_) (5_) (6_) (7_) (4) (5) (6) (7)
0 1 2 3 0_ 1_ 2_ 3_ 4 (0_) 5 (1_) 6 (2_) 7 (3_) 4_ (0) 5_ (1) 6_ (2) 7_ (3) (4_) (5_) (6_) (7_) (4) (5) (6) (7)
0 1 2 3 0_ 1_ 2_ (0_) 3_ (1_) 4 (2_) 5 (3_) 6 (0) 7 (1) 4_ (2) 5_ (3) 6_ (4_) 7_ (5_) (6_) (7_) (4) (5) (6) (7)
0 1 2 3 0_ (0_) 1_ (1_) 2_ (2_) 3_ (3_) 4 (0) 5 (1) 6 (2) 7 (3) 4_ (4_) 5_ (5_) 6_ (6_) 7_ (7_) (4) (5) (6) (7)
""",
    # Qi et al. 2024, figure 2, left.
    "zb-h1": """
0 1 2 3 (0) [0] 4 (1) [1] 5 (2) [2] 6 (3) [3] 7 (4) [4] (5) [5] (6) [6] (7) [7]
0 1 2 (0) 3 (1) [0] 4 (2) [1] 5 (3) [2] 6 (4) [3] 7 (5) [4] (6) [5] (7) [6] [7]
0 1 (0) 2 (1) 3 (2) [0] 4 (3) [1] 5 (4) [2] 6 (5) [3] 7 (6) [4] (7) [5] [6] [7]
0 (0) 1 (1) 2 (2) 3 (3) [0] 4 (4) [1] 5 (5) [2] 6 (6) [3] 7 (7) [4] [5] [6] [7]
""",
}
ZBV = """
0 1 2 0_ (0_) [0_] 1_ (1_) [1_] 3 (0) [0] 2_ (2_) [2_] (1) [1] 3_ (3_) [3_] (2) [2] (3) [3]
0 0_ 1 1_ (0_) [0_] 2 (0) [0] 2_ (1_) [1_] 3 (1) [1] 3_ (2_) [2_] (2) (3_) (3) [2] [3_] [3]
"""
FAMILY = [
    (Schedule(name), laps)
    for name in Schedule
    for laps in (1, 2, 3)
    if not schedule_problem(Schedule(name), 1, laps, 1)
]
DRAWINGS = str(schedules.__doc__)
MARKS = {Phase.FORWARD: "{}", Phase.BACKWARD: "({})", Phase.WEIGHT: "[{}]"}


def row(schedule: Schedule, stages: int, stage: int, micro_batches: int, laps: int) -> str:
    chunks = chunk_order(schedule, stages, stage, micro_batches, laps)
    return " ".join(MARKS[c.phase].format(f"{c.micro_batch}{'_' * c.lap}") for c in chunks)


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    schedule = Schedule(name)
    rows = [row(schedule, 4, stage, 8, schedule.default_laps) for stage in range(4)]
    assert rows == TABLES[name].strip().splitlines()


def test_the_first_stage_of_zbv_is_the_last_too() -> None:
    assert [row(Schedule.ZBV, 2, stage, 4, 2) for stage in range(2)] == ZBV.strip().splitlines()
    assert [at_position(Schedule.ZBV, 4, place)[0] for place in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [at_position(Schedule.INTERLEAVED, 4, place)[0] for place in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    "schedule", [s for s in Schedule if s not in (Schedule.INTERLEAVED, Schedule.ZBV, Schedule.ONEFLOW)]
)
def test_one_stage_alone_finishes_a_micro_batch_before_the_next(schedule: Schedule) -> None:
    chunks = list(chunk_order(schedule, 1, 0, 3))
    assert [chunk.micro_batch for chunk in chunks] == sorted(chunk.micro_batch for chunk in chunks)


@pytest.mark.parametrize(("schedule", "laps"), FAMILY)
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 6, 10])
def test_every_chunk_once_and_in_order(schedule: Schedule, laps: int, stages: int, micro_batches: int) -> None:
    if schedule_problem(schedule, stages, laps, micro_batches):
        return
    phases = [Phase.FORWARD, Phase.BACKWARD, *([Phase.WEIGHT] if schedule.splits_backward else [])]
    for stage in range(stages):
        chunks = list(chunk_order(schedule, stages, stage, micro_batches, laps))
        assert len(chunks) == len(phases) * laps * micro_batches
        at = {(c.phase, c.lap, c.micro_batch): number for number, c in enumerate(chunks)}
        for lap in range(laps):
            for phase in phases:
                numbers = [at[phase, lap, k] for k in range(micro_batches)]
                assert numbers == sorted(numbers)
            for k in range(micro_batches):
                assert [at[phase, lap, k] for phase in phases] == sorted(at[phase, lap, k] for phase in phases)


@pytest.mark.parametrize(("schedule", "laps"), FAMILY)
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_every_place_along_the_pipeline_is_on_one_stage_and_lap(schedule: Schedule, laps: int, stages: int) -> None:
    places = [position_of(schedule, stages, stage, lap) for stage in range(stages) for lap in range(laps)]
    assert sorted(places) == list(range(stages * laps))
    for stage in range(stages):
        for lap in range(laps):
            assert at_position(schedule, stages, position_of(schedule, stages, stage, lap)) == (stage, lap)


@pytest.mark.parametrize(
    ("schedule", "stages", "laps", "micro_batches"),
    [("1f1b", 2, 2, 4), ("zb-h1", 2, 2, 4), ("zbv", 2, 1, 4), ("zbv", 2, 3, 4), ("interleaved", 4, 2, 6)],
)
def test_what_there_is_not(schedule: str, stages: int, laps: int, micro_batches: int) -> None:
    problem = schedule_problem(Schedule(schedule), stages, laps, micro_batches)
    assert problem is not None
    assert schedule in problem


@pytest.mark.parametrize(("schedule", "laps"), FAMILY)
def test_the_pictures_are_what_units_of_time_give(schedule: Schedule, laps: int) -> None:
    """The drawings in the module's docstring."""
    stages = 2 if schedule.default_laps > 1 else 4
    if schedule is Schedule.ONEFLOW or laps != schedule.default_laps:
        return
    run, width = unit_run(schedule, stages, 4, laps), 2 + laps
    for stage in range(stages):
        cells = [" " * width] * run.end
        for leg, times in run.begins.items():
            for k, time in enumerate(times):
                if leg.stage == stage:
                    text = MARKS[leg.phase].format(f"{k}{'_' * leg.lap}")
                    cells[time] = f" {text}" if leg.phase is Phase.FORWARD else text
                    cells[time] = cells[time].ljust(width)
        assert f"    stage {stage}  {''.join(cells).rstrip()}\n" in DRAWINGS


@pytest.mark.parametrize("backward_time", [1, 2, 3])
@pytest.mark.parametrize(
    ("stages", "m", "blocks"), [(1, 3, 2), (2, 6, 2), (3, 7, 5), (4, 9, 3), (4, 16, 9), (5, 4, 11)]
)
def test_a_stage_that_acts_as_soon_as_it_can_never_waits_in_vain(
    stages: int, m: int, blocks: int, backward_time: int
) -> None:
    """Every chunk starts the moment that the stage is free and a chunk is ready; a backward goes first."""
    order = schedules.backward_first(stages, m, blocks=blocks, backward_time=backward_time)
    takes = {Phase.FORWARD: 1, Phase.BACKWARD: backward_time}
    ends: dict[tuple[Phase, int, int], int] = {}

    def ready(phase: Phase, stage: int, micro_batch: int) -> float:
        """When what a chunk reads has been there, and a block is free for what it leaves."""
        if micro_batch == m:
            return math.inf
        if phase is Phase.BACKWARD:
            source = (phase, stage + 1, micro_batch) if stage + 1 < stages else (Phase.FORWARD, stage, micro_batch)
            return ends.get(source, math.inf)
        arrived = ends.get((phase, stage - 1, micro_batch), math.inf) if stage else 0
        freed = 0 if micro_batch < blocks else ends.get((Phase.BACKWARD, stage, micro_batch - blocks), math.inf)
        return max(arrived, freed)

    left = {stage: list(order[stage]) for stage in range(stages)}
    starts: dict[tuple[Phase, int, int], int] = {}
    free = dict.fromkeys(left, 0)
    while any(left.values()):  # each in its order, as soon as what it reads is there
        for stage, chunks in left.items():
            while chunks and ready(chunks[0].phase, stage, chunks[0].micro_batch) < math.inf:
                chunk = chunks.pop(0)
                key = chunk.phase, stage, chunk.micro_batch
                starts[key] = max(free[stage], int(ready(*key)))
                free[stage] = ends[key] = starts[key] + takes[chunk.phase]
    for stage in range(stages):
        assert sorted(chunk.micro_batch for chunk in order[stage]) == sorted([*range(m), *range(m)])
        seen, until = dict.fromkeys(takes, 0), 0
        for chunk in order[stage]:
            key = chunk.phase, stage, chunk.micro_batch
            earliest = {phase: ready(phase, stage, seen[phase]) for phase in takes}
            assert starts[key] == max(until, min(earliest.values())), key
            assert (chunk.phase is Phase.BACKWARD) == (earliest[Phase.BACKWARD] <= starts[key]), key
            seen[chunk.phase], until = seen[chunk.phase] + 1, ends[key]
