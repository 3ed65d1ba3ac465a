"""What a stage holds at a moment: by the drawing of a schedule, and never more than plans hold as they are laid out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.chunk_states import ChunkState, fullest_states, moments
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.linear_step import stage_rows
from strategy.bounds.point import AHEAD, AT_WORK, BYTES, HELD, MOVED, SIZE
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import evaluated
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.short_model import expanded, shortened
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

TWO = ((2,), (2,), (0,), (0,), (1,), (0,), (0,))
"""Two micro-batches saved, and nothing else."""
FEW = 6
CASES = 90
QUOTAS = {
    **{"experts": 30, "experts shared out": 8},
    **{"zero 2": 4, "zero 3": 4, "m 1": 4, "m 2": 4, "moved": 12, "at work": 40},
    **{"interleaved": 4, "zbv": 4, "zb-h1": 4, "oneflow": 2},
}


@pytest.mark.parametrize(
    ("schedule", "stages", "stage", "m", "laps", "expected"),
    [
        # F0 F1 B0 F2 B1 F3 B2 B3: ahead of B1 with sums, while forward passes follow
        (Schedule.ONE_F_ONE_B, 2, 0, 4, 1, [((2,), (2,), (0,), (1,), (1,), (1,), (0,))]),
        # F0 F1 B0 B1: when sums are there, one is left
        (Schedule.ONE_F_ONE_B, 2, 0, 2, 1, [TWO, ((1,), (1,), (0,), (1,), (1,), (0,), (0,))]),
        # F0 B0: no sums while anything follows
        (Schedule.ONE_F_ONE_B, 1, 0, 1, 1, [((1,), (1,), (0,), (0,), (1,), (0,), (0,))]),
        (
            Schedule.GPIPE,
            2,
            1,
            3,
            1,
            [((3,), (3,), (0,), (0,), (1,), (0,), (0,)), ((2,), (2,), (0,), (1,), (1,), (0,), (0,))],
        ),
    ],
)
def test_the_fullest_states_of_a_stage(
    schedule: Schedule, stages: int, stage: int, m: int, laps: int, expected: list[tuple[tuple[int, ...], ...]]
) -> None:
    """By hand."""
    assert fullest_states(schedule, stages, stage, m, laps) == tuple(ChunkState(*each) for each in expected)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_state_of_few_micro_batches_is_one_of_many(schedule: Schedule) -> None:
    """A few are looked at; in the whole order of more, everything that a state counts is there at one moment."""
    looked_at = 0
    for stages, m in ((1, 9), (2, 5), (2, 24), (3, 30), (4, 8), (4, 48)):
        for laps in (2, 3) if schedule is Schedule.INTERLEAVED else (schedule.default_laps,):
            if schedule_problem(schedule, stages, laps, m) is not None:
                continue
            for stage in range(stages):
                numbers = moments(schedule, stages, stage, m, laps).swapaxes(0, 1)
                for state in fullest_states(schedule, stages, stage, m, laps):
                    counted = np.array(astuple(state))
                    assert any((counted <= moment).all() for moment in numbers), (stages, m, laps, stage, state)
                    looked_at += 1
    assert looked_at > 10


def drawn(draw: random.Random) -> tuple[Model, Training, PlanConfig]:
    """A small model and a configuration of it."""
    while True:
        pp, dp, tp = draw.choice((1, 2, 2, 4)), draw.choice((1, 2, 2, 4)), draw.choice((1, 1, 2))
        schedule = draw.choice(list(Schedule)) if pp > 1 else Schedule.ONE_F_ONE_B
        laps = draw.choice((2, 3)) if schedule is Schedule.INTERLEAVED else schedule.default_laps
        m, micro_batch = draw.choice((1, 2, 4, 6, 8, 12, 16)), draw.choice((1, 2))
        if dp * tp * pp > 8 or schedule_problem(schedule, pp, laps, m) is not None:
            continue
        layers = max(draw.choice((5, 6, 7, 9)) * min(pp, 2), pp * laps * draw.choice((1, 3, 4)))
        size = {"layers": layers, "width": 32, "heads": 4, "sequence": draw.choice((8, 32)), "vocabulary": 96}
        experts = MixtralConfig(**size, key_heads=2, hidden=48, experts=4, choices=2)
        model = draw.choice((GptConfig(**size), LlamaConfig(**size, key_heads=2, hidden=80), experts, experts))
        ep = draw.choice((1, 2, 2)) if model is experts and dp > 1 else 1
        precision = draw.choice((Precision.BF16, Precision.FULL))
        config = PlanConfig(
            dp,
            tp,
            pp,
            micro_batch,
            m,
            schedule,
            virtual_stages=laps,
            recompute=draw.choice(list(Recompute)),
            zero_stage=draw.choice((0, 1, 2, 3)) if dp > 1 else 0,
            zero_min_size=1,
            ep=ep,
        )
        return model, Training(global_batch=m * micro_batch * dp, precision=precision), config


@pytest.mark.parametrize(("cases", "quotas"), long_but([(FEW, {"at work": 2}), (CASES, QUOTAS)], 0))
def test_no_plan_holds_less_than_its_rows_say(cases: int, quotas: Mapping[str, int]) -> None:
    """Of random configurations, as they are laid out, under random weights of everything: what has none may be held
    for nobody, at the point that is found, and until the end of the step what is cheaper so."""
    draw, covered, nearest = random.Random(12), Counter[str](), list[float]()
    for _ in range(cases):
        model, training, config = drawn(draw)
        asked, short = (
            request(config.pp * config.dp * config.tp, training, model=model, backend="cuda"),
            shortened(model),
        )
        assert short is not None
        deep, found = space_of(asked, config, free_rules(config)), LayerTemplate.of(asked, short, config, UNLIMITED)
        weights = np.array([10 ** draw.uniform(-2, 2) for _ in range(SIZE)])
        weights[BYTES] *= 10 ** draw.uniform(-1, 4)
        weights[AHEAD] = np.minimum(weights[AHEAD], weights[HELD])
        chosen = solved_template(found, config, weights)
        everywhere = expanded((found.space.graph, chosen.signatures), deep.graph)
        assert everywhere is not None
        layout = evaluated(config, deep, everywhere, 0).layout
        held = memory_nbytes(lower_priced(Priced(deep.graph, layout, asked.pipeline_of(config), asked.cost)))
        covered.update((f"zero {config.zero_stage}", f"m {config.num_micro_batches}", str(config.schedule)))
        covered.update({"experts": isinstance(model, MixtralConfig), "experts shared out": config.ep > 1})
        for stage, placement in enumerate(deep.stages.placements):
            most, rows = max(held[rank] for rank in placement.devices), stage_rows(config, model.layers, stage)
            fullest = max(rows, key=lambda row: float(row @ chosen.point))
            nearest.append(float(fullest @ chosen.point) / most)
            covered["at work"] += bool(fullest[AT_WORK])
            for row in rows:
                covered["moved"] += bool(row[MOVED].any() and chosen.point[MOVED].any())
                assert float(row @ chosen.point) <= most, (config, training.precision, stage, row)
    print(dict(covered), f"counted {np.mean(nearest):.0%}")
    assert all(covered[name] >= least for name, least in quotas.items()), covered
