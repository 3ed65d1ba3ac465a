"""Path mixes: whatever numbers a mix holds, its paths are no longer than the step; what is no mix is refused."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from strategy.base.errors import CertificateError
from strategy.bounds.multipliers import MOST_NS
from strategy.bounds.path_mix import EVEN, MOST_COARSE, MOST_PATHS, MOST_SHARES, PathMix
from strategy.cost.cost import CostModel
from strategy.layout.arrangement import Pipeline
from strategy.layout.makespan import makespan_ns
from strategy.layout.objective import overlap_of
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.layout.step_times import TICKS, StepTimes, in_ticks, no_times
from tests.support.small_plans import cluster

CASES = 300
SIZES = (0, 1, 7, 10**3, 10**6, MOST_NS // 10**3)
COST = {backend: CostModel(cluster(4, backend=backend), {}) for backend in ("cupy", "numpy")}


def random_pipeline(rng: random.Random) -> tuple[Pipeline, int, CostModel] | None:
    schedule, stages = rng.choice(list(Schedule)), rng.randint(1, 4)
    laps = {Schedule.INTERLEAVED: rng.randint(2, 3), Schedule.ZBV: 2}.get(schedule, 1)
    count = rng.choice([stages, 2 * stages, rng.randint(1, 9)])
    if schedule_problem(schedule, stages, laps, count):
        return None
    cost = COST[rng.choice([*COST])]
    return Pipeline(count, schedule, cost.cluster.overlaps, laps), stages, cost


def random_point(rng: random.Random, pipeline: Pipeline, stages: int, cost: CostModel) -> StepTimes:
    """Times from nothing to hours, beside each other; no step that anything takes has them."""
    arrays = {
        name: np.array([rng.choice(SIZES) for _ in zeros.flat], np.int64).reshape(zeros.shape)
        for name, zeros in no_times(stages, pipeline.laps).items()
    }
    return StepTimes(**arrays, overlap=overlap_of(pipeline, cost))


def test_no_mix_is_longer_than_a_step() -> None:
    rng, seen = random.Random(11), Counter[str]()
    while sum(seen.values()) < CASES:
        found = random_pipeline(rng)
        if found is None:
            continue
        pipeline = found[0]
        points = [rng.choice([None, random_point(rng, *found)]) for _ in range(rng.randint(1, 3))]
        mix = PathMix(
            tuple(points), tuple(rng.randint(0, 5) + (at == 0) for at in range(len(points))), rng.choice([0, 1, 5, 9])
        )
        paths = mix.checked_mean(*found)
        times = random_point(rng, *found)
        schedule, count = pipeline.schedule, pipeline.num_micro_batches
        step = makespan_ns(schedule, count, in_ticks(schedule, count, times))
        assert TICKS * paths.length(times) <= paths.number * step
        seen[f"{schedule}{', overlaps' * pipeline.overlaps}"] += 1
    print(dict(seen))
    assert len(seen) == 2 * len(Schedule)


def test_a_step_is_as_long_as_its_own_path() -> None:
    rng = random.Random(12)
    for _ in range(40):
        found = random_pipeline(rng)
        if found is None:
            continue
        pipeline, point = found[0], random_point(rng, *found)
        path = PathMix((point,), (3,)).checked_mean(*found)
        step = makespan_ns(
            pipeline.schedule,
            pipeline.num_micro_batches,
            in_ticks(pipeline.schedule, pipeline.num_micro_batches, point),
        )
        assert TICKS * path.length(point) == path.number * step


def test_what_is_no_mix_is_refused() -> None:
    rng, pipeline, cost = random.Random(1), Pipeline(2, overlaps=True), COST["cupy"]
    longest = StepTimes(
        **{name: zeros + MOST_NS for name, zeros in no_times(1, 1).items()}, overlap=overlap_of(pipeline, cost)
    )
    wrong = [
        (PathMix((), ()), pipeline, "a mix of no paths"),
        (PathMix((None,), (1, 1)), pipeline, "a mix of no paths"),
        (PathMix((None,) * (MOST_PATHS + 1), (1,) * (MOST_PATHS + 1)), pipeline, "a mix of no paths"),
        (PathMix((None, None), (3, -2)), pipeline, "shares that no mix has"),
        (PathMix((random_point(rng, pipeline, 2, cost),), (1,)), pipeline, "times of another pipeline"),
        (PathMix((None,), (1,), -1), pipeline, "bits that no count has"),
        (PathMix((None,), (1,), MOST_COARSE + 1), pipeline, "bits that no count has"),
        (PathMix((longest,), (1,)), Pipeline(10**5, overlaps=True), "too long to be counted"),
    ]
    many, point = Pipeline(1 << 20, overlaps=True), StepTimes(**no_times(8, 1), overlap=overlap_of(pipeline, cost))
    with pytest.raises(CertificateError, match="paths too long to be counted"):
        PathMix((None, point), (1, MOST_SHARES - 1)).checked_mean(many, 8, cost)
    PathMix((None, point), (1, 99)).checked_mean(many, 8, cost)
    for mix, through, words in wrong:
        with pytest.raises(CertificateError, match=words):
            mix.checked_mean(through, 1, cost)
    assert EVEN.checked_mean(pipeline, 1, cost).number == TICKS
