"""Least exchange: no layout gathers parameters and reduces gradients for less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.least_exchange import exchange_of_layer, exchanged, least_exchange_ns
from strategy.bounds.point import MICRO, SIZE
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.rules import following_samples
from strategy.space.short_model import shortened
from tests.campaigns import closed_forms as campaign
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

GPT = GptConfig(layers=8, width=64, heads=4, sequence=16, vocabulary=96)
EXPERTS = MixtralConfig(
    layers=5, width=64, heads=2, key_heads=1, hidden=96, experts=4, choices=2, sequence=32, vocabulary=64,
    rotary_base=10000.0,
)  # fmt: skip
TRAINING = Training(global_batch=16, precision=Precision.BF16)


@pytest.mark.parametrize("model", long_but([GPT, EXPERTS], 1), ids=["gpt", "experts"])
@pytest.mark.parametrize(("dp", "tp", "group"), long_but([(4, 1, 0), (2, 2, 0), (8, 1, 0), (8, 1, 4)], 1, 3))
@pytest.mark.parametrize("stage", [2, 3])
def test_it_is_taken_beside_the_work(model: Model, dp: int, tp: int, group: int, stage: int) -> None:
    asked = request(dp * tp, TRAINING, model=model, backend="cuda", per_node=group or None)
    zero = {"zero_stage": stage, "zero_group": group, "zero_min_size": 1}
    config = PlanConfig(dp, tp, 1, 1, 16 // dp, Schedule.ONE_F_ONE_B, **zero)
    short = shortened(model)
    assert short is not None
    weights = np.zeros(SIZE)
    weights[MICRO] = np.tile([1.0, model.layers - 2, 1.0], 3)
    chosen = solved_template(LayerTemplate.of(asked, short, config, UNLIMITED), config, weights)
    work = least_work(asked)
    exchange_ns = model.layers * least_exchange_ns(work, config)
    assert exchange_ns > 0 or model is EXPERTS
    assert int(work.seconds(config).micro_batch_s * 1e9) + exchange_ns <= chosen.cut.inequality.least


@pytest.mark.parametrize(("dp", "ep", "tp", "group"), long_but([(8, 2, 1, 4), (4, 2, 2, 0), (8, 4, 1, 0)], 2))
@pytest.mark.parametrize("stage", [2, 3])
def test_what_experts_have_is_exchanged_beside_the_axis_of_experts(
    dp: int, ep: int, tp: int, group: int, stage: int
) -> None:
    asked = request(dp * tp, TRAINING, model=EXPERTS, backend="cuda", per_node=group or None)
    config = PlanConfig(dp, tp, 1, 1, 16 // dp, Schedule.ONE_F_ONE_B, ep=ep, zero_stage=stage, zero_min_size=1)
    work, short = least_work(asked), shortened(EXPERTS)
    assert short is not None
    known = exchange_of_layer(work, config)
    assert known.of_experts is not None
    matrices = {spec.shape for spec in known.of_experts.gathered}
    assert matrices == {spec.shape for spec in known.of_experts.reduced} == {(4, 64, 96), (4, 96, 64)}
    assert not matrices & {spec.shape for spec in (*known.gathered, *known.reduced)}
    exchange_ns = least_exchange_ns(work, config)
    others = {key: replace(one, of_experts=None) for key, one in work.exchanges.items()}
    assert exchange_ns > least_exchange_ns(replace(work, exchanges=others), config)
    weights = np.zeros(SIZE)
    weights[MICRO] = np.tile([1.0, EXPERTS.layers - 2, 1.0], 3)
    chosen = solved_template(LayerTemplate.of(asked, short, config, UNLIMITED), config, weights)
    all_ns = int(work.seconds(config).micro_batch_s * 1e9) + EXPERTS.layers * exchange_ns
    assert all_ns <= chosen.cut.inequality.least


def test_every_parameter_is_gathered_for_both_passes() -> None:
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    one, two = least_work(asked).graphs(CONFIG.recompute)
    found = exchanged(one, following_samples(two, 2), by_expert=False)
    matrices = [spec.shape for spec in found.gathered if len(spec.shape) == 2]
    assert len(matrices) == 2 * len([spec for spec in found.reduced if len(spec.shape) == 2]) > 0


@pytest.mark.parametrize("seed", long_but([93004, 93013, 93027, 93031, 93042], 1))
def test_what_is_whole_in_another_way_is_not_said_to_be_exchanged(seed: int) -> None:
    """Routers that see all samples on every rank, and codes made of parameters that are gathered once."""
    assert not campaign.run(1, seed).failures


def test_nothing_is_exchanged_where_nothing_is_shared() -> None:
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    work = least_work(asked)
    for config in (replace(CONFIG, zero_stage=0), replace(CONFIG, zero_stage=1), replace(CONFIG, zero_min_size=10**9)):
        assert least_exchange_ns(work, config) == 0


def test_groups_of_a_node_gather_over_its_links_alone() -> None:
    asked = request(8, TRAINING, model=GPT, backend="cuda", per_node=4)
    whole = PlanConfig(8, 1, 1, 1, 2, Schedule.ONE_F_ONE_B, zero_stage=3)
    work, inside = least_work(asked), replace(asked.cost.cluster, inter=asked.cost.cluster.intra)
    in_groups_ns = least_exchange_ns(work, replace(whole, zero_group=4))
    assert 0 < in_groups_ns < least_exchange_ns(work, whole)
    alone = least_work(replace(asked, cost=replace(asked.cost, cluster=inside)))
    assert in_groups_ns == least_exchange_ns(alone, replace(whole, zero_group=4))


CONFIG = PlanConfig(4, 1, 1, 1, 4, Schedule.ONE_F_ONE_B, zero_stage=3)
