"""Uneven runs against every cut: random parts, schedules, messages and limits."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from strategy.bounds.pipeline_parts import parts_in, times_of
from strategy.bounds.point import PASSES
from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.layout.step_times import Overlap, step_ns
from strategy.search.template.parts import LayerPart, ModelParts
from strategy.search.template.stages import peak_bytes
from strategy.search.template.uneven_runs import UnevenPipeline
from tests.support.long_parameters import long_but


def all_cuts(layers: int, places: int) -> Iterator[tuple[int, ...]]:
    for bars in itertools.combinations(range(1, layers), places - 1):
        yield tuple(end - begin for begin, end in itertools.pairwise((0, *bars, layers)))


def random_parts(rng: random.Random, speeds: list[float]) -> list[ModelParts]:
    """Of every stage; what takes time takes the less, the faster the stage is."""
    most = {"before_ns": 1000, "after_ns": 5000, "static_bytes": 100, "saved_bytes": 100}
    middle = {name: rng.randint(1, most.get(name, 1000)) for name in (*PASSES, "static_bytes", "saved_bytes")}
    first, last = ({name: int(rng.uniform(1, 3) * value) for name, value in middle.items()} for _ in range(2))

    def at(speed: float) -> ModelParts:
        each = ({n: int(v / speed) if n in PASSES else v for n, v in part.items()} for part in (first, middle, last))
        return ModelParts(*(LayerPart(**part) for part in each))

    return [at(speed) for speed in speeds]


def random_pipeline(rng: random.Random) -> UnevenPipeline | None:
    """None where the schedule does not allow it."""
    layers, pp, count = rng.randint(6, 9), rng.choice([2, 3, 4]), rng.choice([1, 2, 4, 8, 12])
    schedule = rng.choice(list(Schedule))
    laps = 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZBV) else 1
    if schedule_problem(schedule, pp, laps, count) or pp * laps > layers:
        return None
    slow = rng.randint(1, pp - 1)
    speeds = [1.0] * slow + [rng.choice([1.5, 2.0, 5.0])] * (pp - slow)
    rng.shuffle(speeds)
    ahead, back = (np.array([rng.randint(0, 500) for _ in range(pp * laps - 1)], np.int64) for _ in range(2))
    limits = [rng.choice([1e9, rng.randint(300, 3500)]) for _ in range(pp)]
    config = PlanConfig(1, 1, pp, 1, count, schedule, virtual_stages=laps)
    overlap = Overlap(allowed=True, slowed_ticks=rng.choice([0, 12])) if rng.random() < 0.5 else Overlap(allowed=False)
    return UnevenPipeline(config, layers, random_parts(rng, speeds), (ahead, back), limits, overlap)


def dealt_ns(pipeline: UnevenPipeline, cut: tuple[int, ...]) -> int | None:
    """None where it does not fit."""
    config, where = pipeline.config, parts_in(pipeline.config, np.array(cut))
    parts = [(one.first, one.middle, one.last) for one in pipeline.parts]
    peaks = (peak_bytes(parts[stage], config, stage, laps) for stage, laps in enumerate(where))
    if any(peak > limit for peak, limit in zip(peaks, pipeline.limits, strict=True)):
        return None
    each = {name: np.array([[getattr(one, name) for one in stage] for stage in parts], np.int64) for name in PASSES}
    times = times_of(where, each, pipeline.between_ns, pipeline.overlap)
    return step_ns(config.schedule, config.num_micro_batches, times)


@pytest.mark.parametrize(("cases", "quota"), long_but([(60, 6), (200, 30)], 0))
def test_no_cut_is_better(cases: int, quota: int) -> None:
    rng, seen = random.Random(11), Counter[str]()
    for _ in range(cases):
        pipeline = random_pipeline(rng)
        if pipeline is None:
            continue
        config, places = pipeline.config, pipeline.config.pp * pipeline.config.virtual_stages
        steps = {cut: dealt_ns(pipeline, cut) for cut in all_cuts(pipeline.layers, places)}
        least = min((step for step in steps.values() if step is not None), default=None)
        found = pipeline.best()
        assert (None if found is None else found.step_ns) == least
        even = layer_runs(pipeline.layers, config.schedule, config.pp, config.virtual_stages)
        if found is None:
            seen["nothing fits"] += 1
            continue
        assert steps[found.config.runs or even] == least
        assert found.config.runs != even
        scarce = None in steps.values()
        seen += Counter({"uneven": bool(found.config.runs), "scarce": scarce, "laps": config.virtual_stages > 1})
    print(dict(seen))
    assert min(seen["uneven"], seen["scarce"]) >= quota
    assert min(seen["nothing fits"], seen["laps"]) > 0


def test_a_single_stage_has_all_layers() -> None:
    (parts,) = random_parts(random.Random(0), [1.0])
    config, none = PlanConfig(1, 1, 1, 1, 4, Schedule.ONE_F_ONE_B), np.zeros(0, np.int64)
    found = UnevenPipeline(config, 6, [parts], (none, none), [1e9], Overlap(allowed=True)).best()
    assert found is not None
    assert found.config == config
    assert UnevenPipeline(config, 6, [parts], (none, none), [1], Overlap(allowed=True)).best() is None


def test_far_more_places_than_layers_can_be_moved_between() -> None:
    """Only neighbours are looked at there; the bottleneck is as short as it can be all the same."""
    speeds = [1.0] * 8 + [2.0] * 8
    parts = random_parts(random.Random(1), speeds)
    config, none = PlanConfig(1, 1, 16, 1, 64, Schedule.ONE_F_ONE_B), np.zeros(15, np.int64)
    pipeline = UnevenPipeline(config, 96, parts, (none, none), [1e9] * 16, Overlap(allowed=True))
    found, even_ns = pipeline.best(), dealt_ns(pipeline, (6,) * 16)
    assert found is not None
    assert even_ns is not None
    assert sum(found.config.runs) == 96
    assert min(found.config.runs[8:-1]) > max(found.config.runs[1:8])
    assert found.step_ns < even_ns
