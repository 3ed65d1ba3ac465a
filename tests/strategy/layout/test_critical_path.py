"""Critical paths: as long as the makespan under their own times, and no longer than that under any others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from strategy.layout import critical_path as module
from strategy.layout.critical_path import critical_path, even_paths, length_ns, straight_path
from strategy.layout.makespan import makespan_ns
from strategy.layout.schedule import Schedule
from tests.support.stage_by_stage import random_pipeline, random_times


@pytest.mark.parametrize("schedule", list(Schedule))
def test_it_is_as_long_as_the_step_and_bounds_every_other(schedule: Schedule) -> None:
    rng = random.Random(3)
    for _ in range(60):
        p, laps, m = random_pipeline(rng, schedule)
        times = random_times(rng, p, laps, longest=rng.choice((1, 3, 50, 10**6)))
        path = critical_path(schedule, m, times)
        assert length_ns(path.counts, times) == makespan_ns(schedule, m, times), (p, laps, m, times)
        others = replace(random_times(rng, p, laps, longest=100), overlaps=times.overlaps)
        assert length_ns(path.counts, others) <= makespan_ns(schedule, m, others)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_times_that_are_too_long_to_be_counted_have_a_path(schedule: Schedule) -> None:
    """As the first guesses of a linear program have them; it bounds other times like any path."""
    rng = random.Random(6)
    for _ in range(20):
        p, laps, m = random_pipeline(rng, schedule)
        times = random_times(rng, p, laps, longest=2**57)
        others = replace(random_times(rng, p, laps, longest=100), overlaps=times.overlaps)
        for path in (critical_path(schedule, m, times), straight_path(schedule, m, times)):
            assert length_ns(path.counts, others) <= makespan_ns(schedule, m, others)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_even_paths_pass_every_stage_and_bound_every_step(schedule: Schedule) -> None:
    rng = random.Random(4)
    for _ in range(30):
        p, laps, m = random_pipeline(rng, schedule)
        times = random_times(rng, p, laps, longest=rng.choice((3, 100)))
        paths = even_paths(schedule, p, laps, m, times.overlaps)
        assert length_ns(paths.counts, times) <= paths.number * makespan_ns(schedule, m, times)
        assert paths.number == p
        assert paths.counts.before_ns.tolist() == paths.counts.after_ns.tolist() == [1] * p
        for chunks in (paths.counts.forward_ns, paths.counts.backward_ns, paths.counts.weight_ns):
            assert chunks.min() > 0


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
def test_even_paths_have_a_part_of_the_bubble(schedule: Schedule) -> None:
    counts = even_paths(schedule, 4, 1, 16, True).counts
    assert 2 * 4 * 16 < counts.forward_ns.sum() + counts.backward_ns.sum() <= 2 * 4 * (16 + 3)


@pytest.mark.parametrize("schedule", [each for each in Schedule if each is not Schedule.GPIPE])
def test_very_long_steps_are_bounded_by_what_one_stage_does(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    monkeypatch.setattr(module, "MOST_CHUNKS", 0)
    even_paths.cache_clear()
    for _ in range(20):
        p, laps, m = random_pipeline(rng, schedule)
        times = random_times(rng, p, laps, longest=50)
        for paths in (critical_path(schedule, m, times), even_paths(schedule, p, laps, m, times.overlaps)):
            assert 0 < paths.counts.forward_ns.sum() == paths.number * m * laps
            assert length_ns(paths.counts, times) <= paths.number * makespan_ns(schedule, m, times)
    even_paths.cache_clear()
