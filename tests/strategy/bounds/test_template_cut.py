"""Template cuts: what is said of other configurations than the template's own holds for their layouts."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import BYTES, SIZE, FloatArray
from strategy.bounds.quick_bound import least_work
from strategy.bounds.template_cut import TemplateName
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.template.template_solve import Chosen, solve_template
from strategy.space.request import Request
from strategy.space.short_model import shortened
from tests.support.long_parameters import long_but

GPT = GptConfig(layers=6, width=256, heads=4, sequence=128, vocabulary=512)
SHORT = shortened(GPT)
ROUNDED = 1e-3
"""By this part sums of rounded times may be off."""


def asked(precision: Precision) -> Request:
    cluster = replace(find_cluster("dgx-h100"), devices_per_node=4)
    return Request("gpt", GPT, Training(global_batch=16, precision=precision), CostModel(cluster, {}), 2**40)


def random_pair(rng: random.Random) -> list[PlanConfig]:
    """Two configurations of one mesh that save memory in different ways."""
    dp, tp = rng.choice([(4, 1), (2, 2), (1, 4)])
    micro = rng.choice([1, 2])
    plain = PlanConfig(dp, tp, 1, micro, 16 // dp // micro, Schedule.ONE_F_ONE_B)
    stages = (0, 0, 3) if dp > 1 else (0,)
    kinds = (Recompute.NONE, Recompute.NONE, Recompute.MEMORY_BOUND, Recompute.FULL)
    one, other = (
        replace(plain, recompute=rng.choice(kinds), zero_stage=rng.choice(stages), offload=rng.choice(list(Offload)))
        for _ in range(2)
    )
    keeps_all = rng.random() < 0.8  # what does not says nothing of others
    return [replace(one, recompute=Recompute.NONE, offload=Offload.NONE) if keeps_all else one, other]


def random_weights(rng: random.Random) -> FloatArray:
    """Of times, every other time of bytes, too."""
    weights = np.array([rng.choice([0.0, 1.0]) * 10 ** rng.uniform(-2, 0) for _ in range(SIZE)])
    if rng.random() < 0.5:
        weights[BYTES] = 0.0
    return weights


def solved(request: Request, config: PlanConfig, weights: FloatArray, *, tensor_axis: bool) -> Chosen:
    assert SHORT is not None
    name = TemplateName(config, tensor_axis)
    found = solve_template(name, LayerTemplate.named(name, request, SHORT, UNLIMITED), weights, UNLIMITED)
    assert isinstance(found, Chosen)
    return found


@pytest.mark.parametrize("cases", long_but([6, 60], 0))
def test_a_cut_holds_for_all_that_it_bounds(cases: int) -> None:
    """Of others that compute again, share out or let the host hold some of it."""
    rng, seen = random.Random(11), Counter[str]()
    requests = {precision: asked(precision) for precision in (Precision.BF16, Precision.FULL)}
    while seen["bounds"] < cases:
        request = rng.choice(list(requests.values()))
        forms = ClosedForms(request, least_work(request))
        one, other = random_pair(rng)
        cut = solved(request, one, random_weights(rng), tensor_axis=rng.random() < 0.4).cut
        if one == other or not cut.bounds(other):
            seen["says nothing"] += 1
            continue
        point = solved(request, other, cut.weighing.weights, tensor_axis=False).point
        said = cut.said_of(other, forms)
        assert float(said.weights @ point) >= said.least * (1 - ROUNDED), (one, other, cut.template.tensor_axis)
        seen["bounds"] += 1
        seen["host"] += other.offload is not one.offload
        seen["tensor axis"] += cut.template.tensor_axis
        seen["near"] += bool(math.isclose(float(said.weights @ point), said.least, rel_tol=0.05))
    print(dict(seen))
    assert all(seen[name] >= cases // 12 for name in ("host", "tensor axis", "near")), seen


def test_bytes_that_the_host_may_hold_are_not_told_of() -> None:
    request, plain = asked(Precision.BF16), PlanConfig(2, 2, 1, 1, 8, Schedule.ONE_F_ONE_B)
    weights = np.ones(SIZE)
    weights[BYTES] = 0.0
    cut = solved(request, plain, weights, tensor_axis=False).cut
    assert all(cut.bounds(replace(plain, offload=offload)) for offload in Offload)
    weights[BYTES.start] = 1.0
    cut = solved(request, plain, weights, tensor_axis=False).cut
    assert [offload for offload in Offload if cut.bounds(replace(plain, offload=offload))] == [Offload.NONE]
    hosted = solved(request, replace(plain, offload=Offload.ALL), weights, tensor_axis=False).cut
    assert not hosted.bounds(plain)
