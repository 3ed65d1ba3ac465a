"""Tied messages: with what the ends of a pipeline hand each other, parts take what the deep model's stages take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import SIZE
from strategy.bounds.tied import NOT_TIED
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import Overlap
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import evaluated
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import between_places, pipelined, stage_messages
from strategy.search.template.tied_messages import tied_messages
from strategy.space.axis_orders import placements_of
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.short_model import expanded, shortened
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

# The table is most of the model.
GPT = GptConfig(layers=8, width=64, heads=4, sequence=16, vocabulary=50_000)


@pytest.mark.parametrize("precision", long_but([Precision.FULL, Precision.BF16], 1))
@pytest.mark.parametrize(("schedule", "laps"), [(Schedule.ONE_F_ONE_B, 1), (Schedule.ZB_H1, 1), (Schedule.ZBV, 2)])
def test_parts_with_tied_messages_take_what_the_stages_of_the_deep_model_take(
    schedule: Schedule, laps: int, precision: Precision
) -> None:
    asked = request(4, Training(global_batch=8, precision=precision), model=GPT, backend="cuda")
    config = PlanConfig(1, 2, 2, 2, 4, schedule=schedule, virtual_stages=laps)
    short = shortened(GPT)
    assert short is not None
    template = LayerTemplate.of(asked, short, config, UNLIMITED)
    signatures = solved_template(template, config, np.ones(SIZE)).signatures
    layout, arrangement = template.arranged(signatures)
    parts = parts_of(template.space.graph, layout, arrangement, asked.cost)
    placements = placements_of(config)
    tied = tied_messages(template.space, signatures, asked.cost, placements)
    assert min(tied.ahead_ns, tied.behind_ns) > 0
    between_ns = between_places(stage_messages(template.space, signatures, asked.cost, placements), config)
    overlap = Overlap.of(asked.cost.cluster)
    found, without = (pipelined(parts, config, GPT.layers, between_ns, overlap, each) for each in (tied, NOT_TIED))
    deep = space_of(asked, config, free_rules(config))
    everywhere = expanded((template.space.graph, signatures), deep.graph)
    assert everywhere is not None
    objective_ns = evaluated(config, deep, everywhere, 0).objective_ns
    assert found.step_ns == pytest.approx(objective_ns, rel=0.02)
    both_ends_on_one_stage = schedule is Schedule.ZBV
    assert (without.step_ns == found.step_ns) == both_ends_on_one_stage
    assert replace(tied, ahead_ns=0, behind_ns=0) == NOT_TIED
