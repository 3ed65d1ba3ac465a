"""Closed forms: no layouts lie below any of them, whatever they were chosen for, and no plan holds less."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.base.errors import InfeasibleError
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import AHEAD, BYTES, HELD, SIZE
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import PlanConfig, Recompute
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
from strategy.space.short_model import expanded, shortened
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

FEW, FEW_QUOTAS = 4, {"m 1": 1, "zero 0": 1, "put off": 1, "full": 1, "llama": 1, "data": 2, "tensor": 1}
CASES, QUOTAS = 24, {"m 1": 3, "zero 0": 8, "zero 3": 1, "put off": 4, "full": 4, "llama": 6, "data": 12, "tensor": 10}
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


@pytest.mark.parametrize(("cases", "quotas"), long_but([(FEW, FEW_QUOTAS), (CASES, QUOTAS)], 0))
def test_no_layouts_lie_below_a_closed_form(cases: int, quotas: Mapping[str, int]) -> None:
    """Every coordinate counts something, so that nothing is held for nobody at the point that is found."""
    draw, covered = random.Random(3), Counter[str]()
    while covered["cases"] < cases:
        name, training, config = drawn(draw)
        if not lies_above(draw, name, training, config):
            continue
        covered.update(("cases", name, f"m {config.num_micro_batches}", f"zero {config.zero_stage}"))
        covered["full"] += config.recompute is Recompute.FULL
        covered["put off"] += config.schedule.splits_backward
        covered["data"] += config.dp > 1
        covered["tensor"] += config.tp > 1
    print(dict(covered))
    assert all(covered[what] >= count for what, count in quotas.items()), covered


@pytest.mark.parametrize("stage", long_but([1, 2, 3], 2))
def test_no_layouts_in_groups_lie_below_a_closed_form(stage: int) -> None:
    draw = random.Random(stage)
    for name, tp, m in (("gpt", 1, 4), ("llama", 2, 1)):
        config = PlanConfig(
            *(4, tp, 1, 1, m, Schedule.ONE_F_ONE_B), zero_stage=stage, zero_group=2, zero_min_size=draw.choice((1, 512))
        )
        assert lies_above(draw, name, Training(4 * m, precision=draw.choice((Precision.BF16, Precision.FULL))), config)


def lies_above(draw: random.Random, name: str, training: Training, config: PlanConfig) -> bool:
    """Hold a random layout of a configuration to all closed forms; False where none is legal."""
    asked = request(config.dp * config.tp * config.pp, training, model=MODELS[name], backend="cuda", per_node=4)
    short = shortened(MODELS[name])
    assert short is not None
    forms = ClosedForms(asked, least_work(asked))
    least, inequalities = forms.least(config), forms.inequalities(config)
    try:
        template = LayerTemplate.of(asked, short, config, UNLIMITED)
    except InfeasibleError:
        return False
    weights = np.array([10 ** draw.uniform(-2, 2) for _ in range(SIZE)])
    weights[BYTES] *= 10 ** draw.uniform(-1, 4)
    weights[AHEAD] = np.minimum(weights[AHEAD], weights[HELD])
    chosen = solved_template(template, config, weights)
    point = chosen.point
    if training.precision is Precision.FULL:
        point[HELD] = np.maximum(point[HELD], least[HELD])  # points do not count copies of variables themselves
    assert (point >= least * (1 - 1e-6)).all(), (config, training, np.flatnonzero(point < least * (1 - 1e-6)))
    deep = space_of(asked, config, free_rules(config))
    everywhere = expanded(template.space.graph, deep.graph, chosen.signatures)
    assert everywhere is not None
    layout = evaluated(config, deep, everywhere, 0).layout
    held = memory_nbytes(lower_priced(Priced(deep.graph, layout, asked.pipeline_of(config), asked.cost)))
    assert forms.least_bytes(config) <= max(held[rank] for rank in deep.stages.placements[0].devices), config
    for inequality in inequalities:
        found = float(inequality.weights @ point)
        assert found >= inequality.least * (1 - 1e-6), (config, training, np.flatnonzero(inequality.weights))
    return True
