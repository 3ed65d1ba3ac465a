"""Answers: what is proposed takes what the deep model's stages take, wherever these lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strategy.base.budget import UNLIMITED
from strategy.bounds.point import SIZE
from strategy.cost.cost import CostModel
from strategy.hardware.presets import PRESETS
from strategy.layout.arrangement import arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import Overlap
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import evaluated
from strategy.search.template.answers import Question, Templates
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import between_places, pipelined
from strategy.space.axis_orders import unlike_stages
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.request import Request
from strategy.space.short_model import expanded, shortened

GPT = GptConfig(layers=8, width=1024, heads=8, sequence=512, vocabulary=512)


def test_stages_across_nodes_take_what_they_take_there() -> None:
    cluster = replace(PRESETS["dgx-h100"], name="three small nodes", nodes=3, devices_per_node=4)
    training = Training(global_batch=12, precision=Precision.BF16)
    asked = Request("gpt", GPT, training, CostModel(cluster, {}), 2**40)
    config = PlanConfig(3, 1, 4, 1, 4, schedule=Schedule.ONE_F_ONE_B)
    assert [one.devices for one in unlike_stages(asked.cost.cluster, config)] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    short = shortened(GPT)
    assert short is not None
    templates = Templates(asked, short)
    question = Question(config, np.ones(SIZE), False, np.inf, UNLIMITED, proposes=True)
    proposed, overlap = templates.answer(question).proposed, Overlap.of(asked.cost.cluster)
    assert proposed is not None
    between_ns = between_places(proposed.messages, config)
    found = pipelined(proposed.parts, config, GPT.layers, between_ns, overlap, proposed.tied)
    deep, space = space_of(asked, config, free_rules(config)), templates.of(question.template, UNLIMITED).space
    everywhere = expanded((space.graph, proposed.signatures), deep.graph)
    assert everywhere is not None
    objective_ns = evaluated(config, deep, everywhere, 0).objective_ns
    assert objective_ns <= found.step_ns < 1.15 * objective_ns
    layout = lay_out(space.graph, space.stages, proposed.signatures, space.converter)
    first = parts_of(space.graph, layout, arrange(space.graph, layout, space.pipeline), asked.cost)
    within = pipelined(first, config, GPT.layers, between_ns, overlap, proposed.tied)
    assert within.step_ns < 0.95 * objective_ns
