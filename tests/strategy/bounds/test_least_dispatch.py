"""Least dispatch: rows go to experts that are shared out, and back, for no less."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.closed_forms import all_of_micro_batch
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.least_dispatch import (
    BY_EXPERT,
    BY_SAMPLE,
    ExpertExchange,
    exchanged_with_experts,
    least_cut_ns,
    least_dispatch_ns,
)
from strategy.bounds.quick_bound import least_work
from strategy.bounds.template_cut import TemplateName
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import TensorSpec
from strategy.search.template.template_solve import Chosen, solve_template
from strategy.space.request import Request
from strategy.space.short_model import shortened
from tests.campaigns import closed_forms as campaign
from tests.support.long_parameters import long_but
from tests.support.small_plans import request

MODEL = MixtralConfig(
    layers=5, width=64, heads=2, key_heads=1, hidden=96, experts=4, choices=2, sequence=32, vocabulary=64,
    rotary_base=10000.0,
)  # fmt: skip
TRAINING = Training(global_batch=16, precision=Precision.BF16)


def asked_of(config: PlanConfig, *, per_node: int | None = None) -> Request:
    return request(config.dp * config.tp, TRAINING, model=MODEL, backend="cuda", per_node=per_node)


def config_of(dp: int, ep: int, tp: int = 1, *, recompute: Recompute = Recompute.NONE) -> PlanConfig:
    return PlanConfig(dp, tp, 1, 1, 16 // dp, Schedule.ONE_F_ONE_B, ep=ep, recompute=recompute)


@pytest.mark.parametrize(("dp", "ep", "tp", "per_node"), long_but([(4, 4, 1, None), (4, 2, 2, 2), (8, 4, 1, 2)], 1))
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_it_is_taken_beside_the_work(dp: int, ep: int, tp: int, per_node: int | None, recompute: Recompute) -> None:
    config = config_of(dp, ep, tp, recompute=recompute)
    asked, short = asked_of(config, per_node=per_node), shortened(MODEL)
    assert short is not None
    template, weights = LayerTemplate.of_tensor_axis(asked, short, config, UNLIMITED), all_of_micro_batch(MODEL.layers)
    found = solve_template(TemplateName(config, tensor_axis=True), template, weights, UNLIMITED)
    assert isinstance(found, Chosen)
    work = least_work(asked)
    dispatch_ns = MODEL.layers * least_dispatch_ns(work, config)
    assert dispatch_ns > 0
    assert int(work.seconds(config).following_s * 1e9) + dispatch_ns <= found.cut.inequality.least


def test_rows_are_exchanged_again_where_all_is_computed_again() -> None:
    config = config_of(4, 4)
    work = least_work(asked_of(config))
    once, again = (least_dispatch_ns(work, replace(config, recompute=one)) for one in (Recompute.NONE, Recompute.FULL))
    assert once < again <= 2 * once  # of what is exchanged once some is covered in the backward pass


def test_it_grows_with_the_micro_batch_and_between_nodes() -> None:
    config = config_of(4, 4)
    work, apart = (least_work(asked_of(config, per_node=per_node)) for per_node in (None, 1))
    least_ns = least_dispatch_ns(work, config)
    assert least_dispatch_ns(work, replace(config, micro_batch=4, num_micro_batches=1)) > 1.5 * least_ns
    assert least_dispatch_ns(apart, config) > 2 * least_ns


def test_nothing_is_said_without_experts_apart_or_under_pins() -> None:
    config = config_of(4, 4)
    work = least_work(asked_of(config))
    assert least_dispatch_ns(work, config_of(4, 1)) == 0
    assert least_dispatch_ns(replace(work, unusual=True), config) == 0
    assert least_dispatch_ns(work, PlanConfig(4, 1, 1, 1, 4, Schedule.ONE_F_ONE_B, ep=4, cp=2)) == 0


def test_every_pass_hands_rows_on_and_takes_them_back() -> None:
    known = exchanged_with_experts(*least_work(asked_of(config_of(4, 4))).graphs(Recompute.NONE))
    to_experts = [each for each in known if each.to_experts]
    rows = [each for each in to_experts if each.one.ragged is not None]
    assert len(rows) >= 2  # of both passes
    assert all(each.source[1] == Split(1) and (Split(1), Split(0)) in each.targets for each in rows)
    back = [each for each in known if not each.to_experts]
    assert sum(each.source[1] == Split(0) and each.one.ragged is not None for each in back) >= 2
    assert all(each.spec(3).shape[each.source[0].dim] == 3 for each in rows if isinstance(each.source[0], Split))


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_least_over_all_ways(seed: int) -> None:
    rng = random.Random(seed)
    free = range(2, 2 + rng.randint(1, 6))
    values, costs_ns = list[ExpertExchange](), list[float]()
    for _ in range(rng.randint(1, 14)):
        to_experts = rng.random() < 0.5
        start = BY_SAMPLE if to_experts else BY_EXPERT
        writer = rng.choice((start, *free))
        readers = tuple(rng.sample((1 - start, *free), rng.randint(1, len(free))))
        spec = TensorSpec((1, 4))
        values.append(ExpertExchange(spec, spec, (B, B), ((B, B),), writer, readers, to_experts))
        costs_ns.append(float(rng.choice((rng.randint(0, 100), rng.randint(0, 10**10)))))
    least_ns = min(
        sum(ns for each, ns in zip(values, costs_ns, strict=True) if is_paid(each, (BY_SAMPLE, BY_EXPERT, *ways)))
        for ways in itertools.product((BY_SAMPLE, BY_EXPERT), repeat=len(free))
    )
    found_ns = least_cut_ns(values, costs_ns)
    coarse_ns = len(values) * max(1.0, sum(costs_ns) / 2**29)
    assert least_ns - coarse_ns <= found_ns <= least_ns


def is_paid(each: ExpertExchange, ways: tuple[int, ...]) -> bool:
    start = BY_SAMPLE if each.to_experts else BY_EXPERT
    return ways[each.writer] == start and any(ways[reader] != start for reader in each.readers)


@pytest.mark.parametrize(("cases", "seed", "quota"), long_but([(4, 6, 1), (10, 1, 3)]))
def test_no_closed_form_is_above_what_a_template_is_solved_to(cases: int, seed: int, quota: int) -> None:
    outcome = campaign.run(cases, seed)
    assert not outcome.failures
    assert outcome.coverage["rows exchanged"] >= quota


def test_the_campaign_finds_a_bound_that_is_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign.ClosedForms, "following_ns", lambda forms, config: 10**15)
    monkeypatch.setattr(campaign.ClosedForms, "inequalities", lambda forms, config: [])
    outcome = campaign.run(1, seed=20)
    assert len(outcome.failures) == 1
    assert np.isfinite(outcome.cases)
