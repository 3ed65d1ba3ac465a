"""Closed forms: no layouts lie below any of them, whatever they were chosen for, and no plan holds less."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.base.errors import InfeasibleError, present
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.kept_layers import ways_of
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import AHEAD, BYTES, HELD, SIZE
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import KeptLayers, PlanConfig, Recompute
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import evaluated
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.request import Pins, Request
from strategy.space.short_model import expanded, shortened
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

FEW, FEW_QUOTAS = 6, {"zero 0": 1, "zero 3": 1, "llama": 1, "data": 2, "tensor": 1, "both ways": 1}
CASES, QUOTAS = (
    36,
    {"m 1": 3, "zero 0": 8, "zero 3": 1, "put off": 4, "full": 4, "llama": 6, "data": 12, "tensor": 10, "both ways": 5},
)
MODELS: dict[str, Model] = {
    "gpt": GptConfig(layers=8, width=64, heads=4, sequence=16, vocabulary=96),
    "llama": LlamaConfig(
        layers=8, width=64, heads=4, key_heads=2, hidden=96, sequence=16, vocabulary=96, rotary_base=10000.0
    ),
}


def drawn(draw: random.Random) -> tuple[str, Training, PlanConfig]:
    """A model and a configuration of it, by a seed."""
    while True:
        dp, tp, pp = draw.choice((1, 2, 4)), draw.choice((1, 2)), draw.choice((1, 2))
        schedule = draw.choice(list(Schedule)) if pp > 1 else Schedule.ONE_F_ONE_B
        laps = 2 if schedule is Schedule.INTERLEAVED else schedule.default_laps
        m, micro_batch = draw.choice((1, 2, 4, 8)), draw.choice((1, 2))
        if schedule_problem(schedule, pp, laps, m) is None and dp * tp > 1:
            break
    recompute = draw.choice(list(Recompute))
    stage = draw.choice((0, 0, 0, 2, 3)) if dp > 1 else 0
    config = PlanConfig(
        *(dp, tp, pp, micro_batch, m, schedule),
        virtual_stages=laps,
        recompute=recompute,
        zero_stage=stage,
        zero_min_size=1,
    )
    precision = draw.choice((Precision.BF16, Precision.FULL))
    return draw.choice(list(MODELS)), Training(m * micro_batch * dp, precision=precision), config


@pytest.mark.parametrize(("seed", "cases", "quotas"), long_but([(3, FEW, FEW_QUOTAS), (6, CASES, QUOTAS)], 0))
def test_no_layouts_lie_below_a_closed_form(seed: int, cases: int, quotas: Mapping[str, int]) -> None:
    """Every coordinate counts something, so that nothing is held for nobody at the point that is found."""
    draw, covered = random.Random(seed), Counter[str]()
    while covered["cases"] < cases:
        name, training, config = drawn(draw)
        ways = lies_above(draw, name, training, config)
        if not ways:
            continue
        covered["both ways"] += ways == 2
        covered.update(("cases", name, f"m {config.num_micro_batches}", f"zero {config.zero_stage}"))
        covered["full"] += config.recompute is Recompute.FULL
        covered["put off"] += config.schedule.splits_backward
        covered["data"] += config.dp > 1
        covered["tensor"] += config.tp > 1
    print(dict(covered))
    assert all(covered[what] >= count for what, count in quotas.items()), covered


@pytest.mark.parametrize("stage", long_but([1, 2, 3]))
def test_no_layouts_in_groups_lie_below_a_closed_form(stage: int) -> None:
    draw = random.Random(stage)
    for name, tp, m in (("gpt", 1, 4), ("llama", 2, 1)):
        config = PlanConfig(
            *(4, tp, 1, 1, m, Schedule.ONE_F_ONE_B), zero_stage=stage, zero_group=2, zero_min_size=draw.choice((1, 512))
        )
        assert lies_above(draw, name, Training(4 * m, precision=draw.choice((Precision.BF16, Precision.FULL))), config)


def lies_above(draw: random.Random, name: str, training: Training, config: PlanConfig) -> int:
    """Hold random layouts of a configuration to all closed forms, one for each way to treat the layers between.

    Says of how many ways some layout is legal. There are two where layers may keep what is computed again.
    """
    asked = request(config.dp * config.tp * config.pp, training, model=MODELS[name], backend="cuda", per_node=4)
    if draw.random() < 0.5:
        asked = replace(asked, pins=Pins(kept_layers=KeptLayers.ANY))
    return sum(_lies_above(draw, asked, training, config, way) for way in ways_of(asked, config))


def _lies_above(draw: random.Random, asked: Request, training: Training, config: PlanConfig, way: PlanConfig) -> bool:
    short, forms = present(shortened(asked.model), "a short model"), ClosedForms(asked, least_work(asked))
    least, inequalities = forms.least(way), forms.inequalities(way)
    try:
        template = LayerTemplate.of(asked, short, way, UNLIMITED)
    except InfeasibleError:
        return False
    weights = np.array([10 ** draw.uniform(-2, 2) for _ in range(SIZE)])
    weights[BYTES] *= 10 ** draw.uniform(-1, 4)
    weights[AHEAD] = np.minimum(weights[AHEAD], weights[HELD])
    chosen = solved_template(template, way, weights)
    point = chosen.point
    if training.precision is Precision.FULL:
        point[HELD] = np.maximum(point[HELD], least[HELD])  # points do not count copies of variables themselves
    assert (point >= least * (1 - 1e-6)).all(), (config, training, np.flatnonzero(point < least * (1 - 1e-6)))
    if way.kept_layers:
        config = replace(config, kept_layers=tuple(range(1, asked.model.layers - 1)))
    deep = space_of(asked, config, free_rules(config))
    everywhere = expanded((template.space.graph, chosen.signatures), deep.graph)
    assert everywhere is not None
    layout = evaluated(config, deep, everywhere, 0).layout
    held = memory_nbytes(lower_priced(Priced(deep.graph, layout, asked.pipeline_of(config), asked.cost)))
    assert forms.least_bytes(config.in_space) <= max(held[rank] for rank in deep.stages.placements[0].devices), config
    for inequality in inequalities:
        found = float(inequality.weights @ point)
        assert found >= inequality.least * (1 - 1e-6), (config, training, np.flatnonzero(inequality.weights))
    return True


@pytest.mark.parametrize("recompute", [Recompute.MEMORY_BOUND, Recompute.SELECTIVE, Recompute.FULL])
@pytest.mark.parametrize("pp", [1, 2])
def test_as_many_layers_compute_again_as_must(recompute: Recompute, pp: int) -> None:
    """By brute force over how many of the layers behind the first of a stage do."""
    asked = request(4, Training(16), model=MODELS["gpt"], backend="cuda", per_node=4)
    asked = replace(asked, pins=Pins(kept_layers=KeptLayers.ANY))
    work, config = least_work(asked), PlanConfig(4 // pp, 1, pp, 1, 4 * pp, Schedule.ONE_F_ONE_B, recompute=recompute)
    free = ClosedForms(asked, work)
    kept, run = replace(config, recompute=Recompute.NONE), 8 // pp
    most, least = free.least_bytes(config, work.bytes_of_layer(kept)), free.least_bytes(config)
    assert most > least
    part, all_ns = (most - least) / run, free.again_ns(kept, config) * 6 / 8
    found = []
    for count in range(run):
        forms = ClosedForms(replace(asked, memory_limit_bytes=math.ceil(most - (1 + count) * part)), work)
        assert forms.fitting([config]) == [True]
        found.append(forms.again_at_least_ns(config))
        assert found[-1] <= all_ns * count / (run - 1)
        assert found[-1] >= all_ns * (count - 0.1) / (run - 1) - 2
    assert found[-1] > 0
    assert ClosedForms(replace(asked, memory_limit_bytes=math.ceil(most)), work).again_at_least_ns(config) == 0
