"""Outer approximations: no layout of the deep model takes less than they say, and they come close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.graph.graph import Phase
from strategy.graph.signature import Signature
from strategy.ilp.problem import evaluate
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.in_flight import Leg, unit_run
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import evaluated, examine
from strategy.search.candidate.candidates import Request, free_rules, space_of
from strategy.search.candidate.quick_bound import least_work
from strategy.search.layouts.short_model import expanded, shortened
from strategy.search.template.layer_template import PASSES, LayerTemplate, Weights
from strategy.search.template.outer_approximation import (
    LARGEST_WEIGHT,
    OuterApproximation,
    chunks_in_flight,
    scale_of,
    template_weights,
    three,
)
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import parts_at, pipelined
from tests.support.small_plans import request

GPT = GptConfig(layers=8, width=64, heads=4, sequence=16, vocabulary=96)
TRAINING = Training(global_batch=16, precision=Precision.BF16)
PLENTY = 2**40
CONFIGS = [
    PlanConfig(2, 2, 1, 2, 4, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 1, 4, 1, 16, Schedule.ZB_H1, recompute=Recompute.SELECTIVE),
    PlanConfig(2, 1, 2, 2, 4, Schedule.INTERLEAVED, virtual_stages=2, zero_stage=3),
    PlanConfig(1, 2, 2, 4, 4, Schedule.ZBV, virtual_stages=2, recompute=Recompute.FULL),
    PlanConfig(1, 4, 1, 4, 4, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 2, 2, 4, 4, Schedule.GPIPE),
]


def within(asked: Request, config: PlanConfig) -> OuterApproximation:
    work = least_work(asked)
    return OuterApproximation.of(
        asked.model.layers,
        asked.memory_limit_bytes,
        work.seconds(config),
        work.bytes_of_layer(config),
        0,
        overlaps=True,
    )


def cut(asked: Request, config: PlanConfig, found: OuterApproximation) -> int:
    """Add the cut by the prices of the bound; returns what a step takes under the layouts of that template."""
    short = shortened(asked.model)
    assert short is not None
    weights = template_weights(found.bound(config))
    template = LayerTemplate.of(asked, short, config, weights, UNLIMITED)
    least, signatures = template.solve(UNLIMITED)
    found.add_cut(weights, least)
    parts = parts_of(template.space.graph, *template.arranged(signatures), asked.cost)
    return pipelined(parts, config, asked.model.layers, (0, 0), overlaps=True).step_ns


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_no_layout_takes_less(config: PlanConfig) -> None:
    """Against the exact solution of the deep model, which the bounds rise towards from cut to cut."""
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    exact = examine(asked, config, free_rules(config), UNLIMITED, None)
    assert exact.solved is not None
    found, bounds, steps = within(asked, config), [], []
    for _ in range(4):
        bound = found.bound(config)
        assert bound.step_ns is not None
        bounds.append(bound.step_ns)
        steps.append(cut(asked, config, found))
    assert 0 < bounds[0] <= bounds[-1] <= exact.solved.objective_ns
    assert bounds == sorted(bounds)
    assert bounds[-1] >= 0.98 * min(steps), "the gap that cuts leave"


def test_memory_raises_the_bound_until_nothing_fits() -> None:
    config = PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B)
    plenty = request(4, TRAINING, model=GPT, backend="cuda")
    found, before = within(plenty, config), 0
    for _ in range(3):
        cut(plenty, config, found)
    for limit in (2**20, 2**17, 2**16, 2**15, 2**10):
        scarce = replace(found, limit_bytes=limit, paths={})
        bound = scarce.bound(config)
        if bound.step_ns is None:
            assert limit == 2**10 or bound.times.sum() == 0
            break
        assert bound.step_ns >= before
        before = bound.step_ns
    assert scarce.bound(config).step_ns is None


@pytest.mark.parametrize("schedule", list(Schedule))
def test_so_many_runs_of_layers_are_saved(schedule: Schedule) -> None:
    """No more than there are in the run where every chunk takes as long."""
    for pp, m, laps in ((1, 4, 1), (2, 4, 1), (4, 8, 1), (4, 4, 1), (4, 2, 1), (2, 4, 2), (4, 8, 2), (4, 8, 3)):
        if schedule_problem(schedule, pp, laps, m) is not None:
            continue
        config = PlanConfig(1, 1, pp, 1, m, schedule, virtual_stages=laps)
        run = unit_run(schedule, pp, m, laps)
        last = Phase.WEIGHT if schedule.splits_backward else Phase.BACKWARD
        for stage in (0, pp - 1):
            legs = range(laps)
            held = sum(run.in_flight(Leg(Phase.FORWARD, stage, lap), [Leg(last, stage, lap)]) for lap in legs)
            assert (
                0 <= chunks_in_flight(config, stage, sums=True) <= chunks_in_flight(config, stage, sums=False) <= held
            )


def test_prices_become_integers() -> None:
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    config = CONFIGS[1]
    bound = within(asked, config).bound(config)
    weights = template_weights(bound)
    assert max(map(max, weights.times.values())) == LARGEST_WEIGHT
    forward = np.array(weights.times["forward_ns"]) / scale_of(bound)
    assert np.allclose(forward, bound.times[0], rtol=0.02)
    assert weights.held == weights.sums == weights.saved == (0.0, 0.0, 0.0), "memory is not scarce"


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FULL])
@pytest.mark.parametrize("config", [*CONFIGS, PlanConfig(2, 2, 1, 8, 1, Schedule.ONE_F_ONE_B)], ids=str)
def test_stages_hold_no_less_than_rows_say(config: PlanConfig, precision: Precision) -> None:
    """The deep model as it is laid out, under the layouts that cost least and under those that hold least."""
    asked = request(4, replace(TRAINING, precision=precision), model=GPT, backend="cuda")
    short = shortened(GPT)
    assert short is not None
    deep = space_of(asked, config, free_rules(config))
    for byte in (0.0, 1e3):
        fast = template_weights(within(asked, config).bound(config))
        each = (byte, byte * (GPT.layers - 2), byte)
        found = LayerTemplate.of(asked, short, config, replace(fast, held=each, sums=each, saved=each), UNLIMITED)
        _, signatures = found.solve(UNLIMITED)
        everywhere = expanded(found.space.graph, deep.graph, signatures)
        assert everywhere is not None
        peak = evaluated(config, deep, everywhere, 0).peaks[0]
        for sums in (False, True):
            counted = rows_of(asked, config, short, signatures, sums=sums)
            assert 0 < counted <= peak
            assert counted >= 0.1 * peak or not sums


def rows_of(
    asked: Request, config: PlanConfig, short: Model, signatures: Mapping[str, Signature], *, sums: bool
) -> int:
    """What the first stage holds by the rows of the linear program, with layouts given."""
    where, chunks = parts_at(config, GPT.layers)[0], chunks_in_flight(config, 0, sums=sums)
    held = three(where.sum(0).astype(float).tolist())
    saved = three((chunks * where[0]).astype(float).tolist()) if config.virtual_stages == 1 else (0.0, 0.0, 0.0)
    nothing = {name: (0, 0, 0) for name in PASSES}
    weights = Weights(nothing, held, held if sums else (0.0, 0.0, 0.0), saved)
    problem = LayerTemplate.of(asked, short, config, weights, UNLIMITED).problem
    return evaluate(problem.problem, problem.choice_of(signatures)).cost
