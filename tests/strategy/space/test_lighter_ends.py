"""Lighter ends: fewer layers beside what lies outside of them, as long as that makes the fullest stage lighter."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import Schedule, at_position
from strategy.models import find_model
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.space import lighter_ends
from strategy.space.lighter_ends import layers_outside, lighter_runs
from tests.pytorch.parameter_counts import configs

MODEL = GptConfig(layers=8, width=64, heads=4, sequence=32, vocabulary=256)
TRAINING = Training(global_batch=4)


def pipeline(stages: int, schedule: Schedule = Schedule.ONE_F_ONE_B, laps: int = 1) -> PlanConfig:
    return PlanConfig(1, 1, stages, 1, 8, schedule, virtual_stages=laps)


def worth(monkeypatch: pytest.MonkeyPatch, ahead: float, behind: float) -> None:
    """What is ahead of the layers and behind them takes as long as so many of them."""
    monkeypatch.setattr(lighter_ends, "layers_outside", lambda *_: (ahead, behind))


def test_eight_layers_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    worth(monkeypatch, 0.0, 2.5)
    assert lighter_runs(MODEL, TRAINING, pipeline(4)) == ((2, 2, 3, 1),)


def test_sixteen_layers_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    worth(monkeypatch, 3.0, 4.0)
    *_, lightest = lighter_runs(replace(MODEL, layers=16), TRAINING, pipeline(4))
    assert lightest == (3, 5, 6, 2)


def test_a_light_head_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worth(monkeypatch, 0.1, 0.2)
    for stages in (2, 4, 8):
        assert lighter_runs(MODEL, TRAINING, pipeline(stages)) == ()


@pytest.mark.parametrize(
    ("ahead", "behind"), [(0, 0.6), (0, 2.3), (0, 7.5), (1, 1), (3, 3.6), (4, 0), (0.7, 5), (6, 2.4)]
)
@pytest.mark.parametrize(
    ("stages", "schedule", "laps"),
    [
        *((stages, Schedule.ONE_F_ONE_B, 1) for stages in (2, 3, 4, 5, 8)),
        *((stages, Schedule.INTERLEAVED, laps) for stages, laps in ((2, 2), (2, 4), (3, 2), (4, 2))),
        *((stages, Schedule.ZBV, 2) for stages in (2, 3, 4)),
    ],
)
def test_every_cut_has_a_lighter_fullest_stage(
    stages: int, schedule: Schedule, laps: int, ahead: float, behind: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without laps the last one is as light as any cut, but for what is not worth it."""
    worth(monkeypatch, ahead, behind)
    model = replace(MODEL, layers=16)
    config = pipeline(stages, schedule, laps)
    stage_of = [at_position(schedule, stages, place)[0] for place in range(stages * laps)]

    def fullest(runs: tuple[int, ...]) -> float:
        loads = [ahead * (stage == stage_of[0]) + behind * (stage == stage_of[-1]) for stage in range(stages)]
        for run, stage in zip(runs, stage_of, strict=True):
            loads[stage] += run
        return max(loads)

    even = layer_runs(16, schedule, stages, laps)
    found = lighter_runs(model, TRAINING, config)
    assert all(sum(runs) == 16 and min(runs) >= 1 for runs in found)
    heights = [fullest(even), *map(fullest, found)]
    assert all(less <= more - lighter_ends.WORTH for more, less in itertools.pairwise(heights))
    if laps == 1:
        ends = ((first, last) for first in range(1, 16) for last in range(1, 17 - first))
        best = min(
            max(first + ahead, math.ceil((16 - first - last) / (stages - 2)) if stages > 2 else 0, last + behind)
            for first, last in ends
            if (first + last == 16 if stages == 2 else first + last + stages - 2 <= 16)
        )
        assert heights[-1] <= best + lighter_ends.WORTH + 1e-9


def test_the_head_is_counted_in_layers() -> None:
    """Of forward products: 12 w^2 and attention's s w, causal, of a layer, for each token; w v of the head."""
    w, s, v = 64, 32, 256
    ahead, behind = layers_outside(MODEL, TRAINING)
    assert ahead < 0.01
    assert behind == pytest.approx(w * v / (12 * w * w + s * w), rel=0.2)
    assert layers_outside(replace(MODEL, layers=2), TRAINING) == (0.0, 0.0)


def test_layers_that_are_not_repeated_are_counted_in_those_that_are() -> None:
    """DeepSeek-V3's three dense ones are as much work as its others; the one that predicts further has a head, too."""
    model = find_model(str(configs()["DeepSeek-V3"]))
    ahead, behind = layers_outside(replace(model, sequence=4096), Training(global_batch=64))  # type: ignore[type-var]
    assert ahead == pytest.approx(3, rel=0.05)
    assert 3 < behind < 5
