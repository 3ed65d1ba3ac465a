"""Lighter ends: fewer layers where the head is, as long as that makes the fullest stage lighter."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import Schedule, at_position
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.space import lighter_ends
from strategy.space.lighter_ends import layers_behind, lighter_runs

MODEL = GptConfig(layers=8, width=64, heads=4, sequence=32, vocabulary=256)
TRAINING = Training(global_batch=4)


def pipeline(stages: int, schedule: Schedule = Schedule.ONE_F_ONE_B, laps: int = 1) -> PlanConfig:
    return PlanConfig(1, 1, stages, 1, 8, schedule, virtual_stages=laps)


def worth(monkeypatch: pytest.MonkeyPatch, behind: float) -> None:
    """What follows the layers takes as long as so many of them."""
    monkeypatch.setattr(lighter_ends, "layers_behind", lambda *_: behind)


def test_eight_layers_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    worth(monkeypatch, 2.5)
    assert lighter_runs(MODEL, TRAINING, pipeline(4)) == ((2, 2, 3, 1),)


def test_a_light_head_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worth(monkeypatch, 0.2)
    for stages in (2, 4, 8):
        assert lighter_runs(MODEL, TRAINING, pipeline(stages)) == ()


@pytest.mark.parametrize("behind", [0.6, 1.0, 2.3, 4.0, 7.5])
@pytest.mark.parametrize(
    ("stages", "schedule", "laps"),
    [
        *((stages, Schedule.ONE_F_ONE_B, 1) for stages in (2, 3, 4, 5, 8)),
        *((stages, Schedule.INTERLEAVED, laps) for stages, laps in ((2, 2), (2, 4), (3, 2), (4, 2))),
        *((stages, Schedule.ZBV, 2) for stages in (2, 3, 4)),
    ],
)
def test_every_cut_has_a_lighter_fullest_stage(
    stages: int, schedule: Schedule, laps: int, behind: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without laps the last one is as light as any cut, but for what is not worth it."""
    worth(monkeypatch, behind)
    model = replace(MODEL, layers=16)
    config = pipeline(stages, schedule, laps)
    stage_of = [at_position(schedule, stages, place)[0] for place in range(stages * laps)]

    def fullest(runs: tuple[int, ...]) -> float:
        loads = [behind * (stage == stage_of[-1]) for stage in range(stages)]
        for run, stage in zip(runs, stage_of, strict=True):
            loads[stage] += run
        return max(loads)

    even = layer_runs(16, schedule, stages, laps)
    found = lighter_runs(model, TRAINING, config)
    assert all(sum(runs) == 16 and min(runs) >= 1 for runs in found)
    assert [runs[-1] for runs in found] == list(range(even[-1] - 1, even[-1] - 1 - len(found), -1))
    heights = [fullest(even), *map(fullest, found)]
    assert all(less <= more - lighter_ends.WORTH for more, less in itertools.pairwise(heights))
    if laps == 1:
        others = (16 - last for last in range(1, even[-1] + 1))
        best = min(max(math.ceil(rest / (stages - 1)), 16 - rest + behind) for rest in others)
        assert heights[-1] <= best + lighter_ends.WORTH + 1e-9


def test_the_head_is_counted_in_layers() -> None:
    """Of forward products: 12 w^2 and attention's s w, causal, of a layer, for each token; w v of the head."""
    w, s, v = 64, 32, 256
    assert layers_behind(MODEL, TRAINING) == pytest.approx(w * v / (12 * w * w + s * w), rel=0.2)
    assert layers_behind(replace(MODEL, layers=2), TRAINING) == 0.0
