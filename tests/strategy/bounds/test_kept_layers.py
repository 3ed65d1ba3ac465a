"""Kept layers: which configurations stand for two ways to treat the layers between, and all their mixes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.bounds.kept_layers import ways_of
from strategy.layout.config import KeptLayers, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.training import Training
from strategy.space.request import Pins
from strategy.space.trainer_space import TargetTrainer
from tests.support.small_plans import request

FLAT = PlanConfig(4, 1, 1, 4, 1, Schedule.ONE_F_ONE_B, recompute=Recompute.MEMORY_BOUND)
PIPED = replace(FLAT, dp=2, pp=2)


def ways(config: PlanConfig, **pins: object) -> int:
    return len(ways_of(replace(request(4, Training(16)), pins=Pins(**pins)), config))  # type: ignore[arg-type]


def test_on_a_single_stage_layers_may_keep_what_others_compute_again() -> None:
    kinds = [ways(replace(FLAT, recompute=kind)) for kind in Recompute]
    assert dict(zip(Recompute, kinds, strict=True)) == {"none": 1, "memory-bound": 2, "selective": 1, "full": 2}
    assert ways(PIPED) == 1


@pytest.mark.parametrize(
    "pins",
    [
        {"kept_layers": KeptLayers.NONE},
        {"recompute": Recompute.FULL},
        {"recompute_values": ("*.gelu",)},
        {"trainer": TargetTrainer.MEGATRON},
    ],
)
def test_not_where_pins_say_what_all_layers_do(pins: dict[str, object]) -> None:
    assert ways(FLAT, **pins) == 1


def test_where_it_is_asked_for_they_may_everywhere() -> None:
    assert [ways(one, kept_layers=KeptLayers.ANY, recompute=Recompute.FULL) for one in (FLAT, PIPED)] == [2, 2]
