"""Least work: below what any choice of layouts takes, in halves, with convolutions, attention and experts, too."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.least_steps import least_steps_ns
from strategy.bounds.quick_bound import least_work, quick_bound_ns
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model, find_model
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.models.resnet import FAMILY as RESNET
from strategy.models.vgg import FAMILY as VGG
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import examine
from strategy.space.candidate_space import free_rules
from strategy.space.request import Request
from tests.support.long_parameters import long_but
from tests.support.small_plans import request

LONG = GptConfig(layers=2, width=64, heads=2, sequence=512, vocabulary=101)
EXPERTS = MixtralConfig(
    layers=2, width=64, heads=2, key_heads=1, hidden=96, experts=4, choices=2, sequence=32, vocabulary=64,
    rotary_base=10000.0,
)  # fmt: skip


def on_gpus(model: Model, precision: Precision, cluster: str, devices: int) -> Request:
    cost = CostModel(replace(find_cluster(cluster), devices_per_node=devices), {})
    return replace(request(devices, Training(global_batch=4, precision=precision), model=model), cost=cost)


@pytest.mark.parametrize(
    ("model", "precision", "degrees"),
    long_but(
        itertools.product(
            [LONG, EXPERTS], [Precision.FULL, Precision.BF16, Precision.FP16], [(2, 2, 1), (1, 4, 2), (4, 1, 1)]
        ),
        *(4, 11, 13),
    ),
)
def test_no_layout_takes_less(model: Model, precision: Precision, degrees: tuple[int, int, int]) -> None:
    dp, tp, micro = degrees
    asked = on_gpus(model, precision, "dgx-a100", 4)
    config = PlanConfig(dp, tp, 1, micro, 4 // dp // micro, schedule=Schedule.ONE_F_ONE_B)
    free = examine(asked, config, free_rules(config), UNLIMITED, None)
    assert free.solved is not None
    assert 0 < quick_bound_ns(asked, config) <= free.free_bound_ns <= free.solved.objective_ns


@pytest.mark.parametrize("precision", [Precision.FULL, Precision.BF16])
def test_what_a_single_sample_needs_no_sum_for_is_no_op_of_others(precision: Precision) -> None:
    asked = on_gpus(find_model("vit-tiny"), precision, "dgx-a100", 4)
    config = PlanConfig(2, 2, 1, 1, 2, schedule=Schedule.ONE_F_ONE_B)
    free = examine(asked, config, free_rules(config), UNLIMITED, None)
    assert free.solved is not None
    assert 0 < quick_bound_ns(asked, config) <= free.free_bound_ns


@pytest.mark.parametrize("precision", long_but([Precision.BF16, Precision.FP16], 0))
def test_convolutions_in_halves_are_as_fast_as_they_are(precision: Precision) -> None:
    """They were once priced at the rate of single precision, which is no bound."""
    vgg = VGG.presets["vgg16"].model
    asked = on_gpus(vgg, precision, "dgx-1", 2)
    config = PlanConfig(2, 1, 1, 2, 1, schedule=Schedule.ONE_F_ONE_B)
    whole = examine(asked, config, config.axes, UNLIMITED, None)
    assert quick_bound_ns(asked, config) <= whole.free_bound_ns


@pytest.mark.parametrize("count", long_but([2, 4], 0))
def test_layers_that_are_unlike_cannot_be_dealt_out_evenly(count: int) -> None:
    """They stay where they are, which takes longer than the best cut of their sum, and no longer than any layout."""
    asked = on_gpus(RESNET.presets["resnet18"].model, Precision.FULL, "dgx-a100", 4)
    config = PlanConfig(1, 1, 4, 4 // count, count, schedule=Schedule.ZBV, virtual_stages=2)
    whole = examine(asked, config, config.axes, UNLIMITED, None)
    (spread_ns,) = least_steps_ns(replace(least_work(asked), stages_are_pinned=True), [config])
    assert 1.05 * spread_ns < quick_bound_ns(asked, config) <= whole.free_bound_ns


def test_recomputing_takes_more_and_saves_memory() -> None:
    asked = on_gpus(LONG, Precision.BF16, "dgx-a100", 4)
    work = least_work(asked)
    config = PlanConfig(1, 1, 4, 1, 4, schedule=Schedule.ONE_F_ONE_B)
    plain, full = (work.seconds(replace(config, recompute=kind)) for kind in (Recompute.NONE, Recompute.FULL))
    assert full.backward_s > plain.backward_s
    assert full.forward_s == plain.forward_s
    ahead_s, within_s, behind_s = plain.parts_s
    assert 0 < ahead_s < behind_s < within_s
    assert sum(plain.parts_s) == pytest.approx(plain.micro_batch_s)
    deep = least_work(replace(asked, model=replace(LONG, layers=5)))
    held, less = (deep.bytes_of_layer(replace(config, recompute=kind)) for kind in (Recompute.NONE, Recompute.FULL))
    assert 0 < less.saved < held.saved
    assert 0 < held.held < less.held < 1.01 * held.held, "biases that are added again are there for that"
    assert deep.bytes_of_layer(replace(config, dp=2, zero_stage=3)).held == pytest.approx(held.held / 2)
