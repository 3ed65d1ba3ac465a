"""The bound against the least makespan by linear programs, against random splits, and against equal stages."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.layout.makespan import PipelineTimes, makespan_ns
from strategy.layout.makespan_bound import makespan_bound_ns
from strategy.layout.schedule import Schedule
from tests.campaigns import makespan_bound as campaign
from tests.support.least_makespan import least_makespan
from tests.support.long_parameters import long_but

TOTALS = [(1, 1, 0, 0), (1, 2, 0, 0), (1, 1, 1, 0), (1, 1, 5, 0), (3, 1, 1, 0), (1, 2, 0, 2), (1, 1, 1, 30)]
"""F, B, W and U."""
SCALE = 10**9


def bound(schedule: Schedule, p: int, m: int, totals: tuple[float, float, float, float], laps: int = 0) -> float:
    forward, backward, weight, step = (round(SCALE * total) for total in totals)
    given = {"forward_ns": forward, "backward_ns": backward, "weight_ns": weight, "step_ns": step}
    return int(makespan_bound_ns(schedule, p, m, laps or schedule.default_laps, **given)) / SCALE


def least(schedule: Schedule, p: int, m: int, totals: tuple[float, float, float, float], laps: int = 0) -> float:
    given = dict(zip(("forward", "backward", "weight", "step"), totals, strict=True))
    return least_makespan(schedule, p, m, laps or schedule.default_laps, **given)


def equal_stages(schedule: Schedule, p: int, m: int, totals: tuple[float, float, float, float]) -> float:
    laps = schedule.default_laps
    times = [np.full((p, laps), round(SCALE * total / (p * laps))) for total in totals[:3]]
    step = np.full(p, round(SCALE * totals[3] / p))
    return makespan_ns(schedule, m, replace(PipelineTimes.of_passes(*times), after_ns=step)) / SCALE


@pytest.mark.parametrize("counts", long_but([((1, 3, 8),), ((2, 4, 5, 7),)], 0))
@pytest.mark.parametrize("schedule", list(Schedule))
def test_no_split_is_below(schedule: Schedule, counts: tuple[int, ...]) -> None:
    for p in (1, 2, 3):
        for m in (p, 2 * p, 3 * p) if schedule is Schedule.INTERLEAVED else counts:
            for totals in TOTALS:
                assert bound(schedule, p, m, totals) <= least(schedule, p, m, totals) + 1e-6, (p, m, totals)


@pytest.mark.parametrize(("laps", "p", "rounds"), [(1, 2, 2), (1, 4, 1), (3, 2, 1), (3, 2, 3), (3, 3, 1), (4, 2, 1)])
def test_no_split_over_laps_is_below(laps: int, p: int, rounds: int) -> None:
    for totals in ((1.0, 1.0, 0.0, 0.0), (1.0, 2.0, 0.0, 0.0), (3.0, 1.0, 0.0, 0.0), (0.0, 1.0, 0.0, 1.0)):
        given = Schedule.INTERLEAVED, p, p * rounds, totals, laps
        assert bound(*given) <= least(*given) + 1e-6, totals


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_nothing_higher_holds(schedule: Schedule, p: int) -> None:
    """Without what is done once per step."""
    for m in (1, 2, 3, 4, 5, 9):
        for totals in ((1, 1, 0, 0), (1, 2, 0, 0), (1, 1, 3, 0), (5, 1, 1, 0)):
            assert bound(schedule, p, m, totals) == pytest.approx(least(schedule, p, m, totals), rel=1e-7)


def test_with_what_is_done_once_per_step_nothing_higher_holds_of_1f1b() -> None:
    """Where that takes longer than the pipeline to fill."""
    for p, m in ((2, 5), (3, 7), (4, 12)):
        totals = (1.0, 2.0, 0.0, 20.0)
        found = least(Schedule.ONE_F_ONE_B, p, m, totals)
        assert bound(Schedule.ONE_F_ONE_B, p, m, totals) == pytest.approx(found, rel=1e-7)


@pytest.mark.parametrize(
    ("schedule", "totals", "above"),
    [
        ("gpipe", (1, 2, 0, 0), 0.0),
        ("1f1b", (1, 2, 0, 0), 0.0),
        ("1f1b", (1, 2, 0, 3), 0.014),
        ("oneflow", (1, 2, 0, 0), 0.051),
        ("zb-h1", (1, 1, 1, 0), 0.018),
        ("zbv", (1, 1, 1, 0), 0.018),
        ("interleaved", (1, 2, 0, 0), 0.027),
    ],
)
def test_how_far_equal_stages_are_above(schedule: str, totals: tuple[float, float, float, float], above: float) -> None:
    """Eight stages, 64 micro-batches."""
    found = equal_stages(Schedule(schedule), 8, 64, totals) / bound(Schedule(schedule), 8, 64, totals)
    assert found - 1 == pytest.approx(above, abs=0.0006)


def test_random_splits() -> None:
    outcome = campaign.run(240, seed=0)
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_many_configurations_at_once() -> None:
    draw = np.random.default_rng(0)
    p, m = draw.integers(1, 65, 10**6), draw.integers(1, 10**4, 10**6)
    totals = {name: draw.integers(0, 10**10, 10**6) for name in ("forward_ns", "backward_ns", "weight_ns", "step_ns")}
    for schedule in Schedule:
        begin = time.process_time()
        found = makespan_bound_ns(schedule, p, m, **totals)
        assert time.process_time() - begin < 2
        for at in range(0, 10**6, 10**5):
            alone = {name: total[at] for name, total in totals.items()}
            assert found[at] == makespan_bound_ns(schedule, p[at], m[at], **alone)


def test_what_is_too_small() -> None:
    with pytest.raises(InputError, match="num_micro_batches: too small"):
        makespan_bound_ns(Schedule.GPIPE, 2, [3, 0], forward_ns=1, backward_ns=1)
    with pytest.raises(InputError, match="weight_ns: too small"):
        makespan_bound_ns(Schedule.GPIPE, 2, 3, forward_ns=1, backward_ns=1, weight_ns=-1)
