"""A trainer's space: what its configurations can say, and that plans of it are said whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import ContradictionError
from strategy.graph.graph import Role
from strategy.layout.config import Context, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models.decoder_description import HeadNorm
from strategy.passes.training import Training, training_graph
from strategy.sbp.sbp import B, Split
from strategy.search.search import search
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins, Request
from strategy.space.trainer_space import TRAINER_SPACES, TargetTrainer, norms_of, parameter_layouts, trainer_axis
from tests.campaigns.trainer_exports import check
from tests.support.long_parameters import long_but
from tests.support.small_plans import request, simulated
from tests.support.trainer_plans import EXPERTS, LLAMA

MEGATRON, TORCHTITAN, DEEPSPEED = (TRAINER_SPACES[name] for name in TargetTrainer)
PLAIN = PlanConfig(2, 1, 1, 1, 4, Schedule.ONE_F_ONE_B)
ONE_F_ONE_B = replace(PLAIN, pp=2)


def asked(model: object = LLAMA, gpus: int = 4, **pins: object) -> Request:
    return replace(request(gpus, Training(16), model=model), pins=Pins(**pins))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "said_by"),
    [
        (PLAIN, {"megatron", "deepspeed"}),
        (replace(PLAIN, zero_stage=3), {"megatron", "torchtitan", "deepspeed"}),
        (replace(PLAIN, zero_stage=2), {"deepspeed"}),
        (replace(PLAIN, zero_stage=1), {"megatron", "deepspeed"}),
        (replace(ONE_F_ONE_B, zero_stage=1), {"megatron", "deepspeed"}),
        (ONE_F_ONE_B, {"megatron", "deepspeed"}),
        (replace(ONE_F_ONE_B, zero_stage=2), {"torchtitan"}),
        (replace(ONE_F_ONE_B, dp=1), {"megatron", "torchtitan", "deepspeed"}),
        (replace(ONE_F_ONE_B, dp=1, schedule=Schedule.ZB_H1), set()),
        (replace(ONE_F_ONE_B, dp=1, schedule=Schedule.INTERLEAVED, virtual_stages=2), {"megatron", "torchtitan"}),
        (replace(ONE_F_ONE_B, dp=1, schedule=Schedule.ZBV, virtual_stages=2), {"torchtitan"}),
        (replace(ONE_F_ONE_B, dp=1, pp=3), set()),
        (replace(ONE_F_ONE_B, dp=1, runs=(1, 3)), set()),
        (replace(PLAIN, recompute=Recompute.SELECTIVE), {"megatron"}),
        (replace(PLAIN, recompute=Recompute.MEMORY_BOUND), set()),
        (replace(PLAIN, ep=2), {"megatron"}),
        (replace(PLAIN, dp=1, cp=2), {"megatron", "torchtitan"}),
        (replace(PLAIN, dp=1, cp=2, context=Context.ALL_TO_ALL), {"deepspeed"}),
        (replace(PLAIN, dp=1, tp=2), {"megatron", "torchtitan", "deepspeed"}),
        (replace(PLAIN, dp=1, tp=4), set()),  # of two heads of keys
        (replace(PLAIN, tp=2, dp=2, strides=(4, 1, 2)), set()),
    ],
)
def test_what_a_trainer_can_be_told(config: PlanConfig, said_by: set[str]) -> None:
    assert {str(name) for name, space in TRAINER_SPACES.items() if space.says(LLAMA, config)} == said_by


def test_a_pipeline_needs_layers_that_all_repeat() -> None:
    other = replace(LLAMA, before=1, windows=(0, 0), sparse=(0, 0))
    assert MEGATRON.says(other, PLAIN)
    assert not MEGATRON.says(other, ONE_F_ONE_B)
    assert not TORCHTITAN.says(other, replace(ONE_F_ONE_B, zero_stage=2))
    assert not DEEPSPEED.says(EXPERTS, replace(PLAIN, ep=2))


def test_stage_1_can_be_pinned_for_a_trainer_that_has_it() -> None:
    """Megatron's distributed optimiser: it is not listed beside stage 0, whose layouts have it among them."""
    pins = {"trainer": TargetTrainer.MEGATRON, "dp": 2, "pp": 2}
    assert {config.zero_stage for config in candidates_of(asked(**pins))} == {0}
    assert {config.zero_stage for config in candidates_of(asked(**pins, zero_stage=1))} == {1}
    assert not list(candidates_of(asked(**{**pins, "trainer": TargetTrainer.TORCHTITAN}, zero_stage=1)))


@pytest.mark.parametrize("trainer", TargetTrainer)
def test_the_space_of_a_trainer_is_listed_of_the_whole_one(trainer: TargetTrainer) -> None:
    limited, space = list(candidates_of(asked(trainer=trainer))), TRAINER_SPACES[trainer]
    assert limited
    assert all(space.says(LLAMA, config) for config in limited)
    free = {config for config in candidates_of(asked()) if config.zero_stage != 2}
    added = {config for config in limited if config.zero_stage == 2}
    assert set(limited) - added < free
    assert {config for config in free if space.says(LLAMA, config)} == set(limited) - added


def test_along_the_tensor_axis_layers_lie_as_trainers_have_them() -> None:
    graph = training_graph(LLAMA, Training(8))
    layouts = dict(parameter_layouts(graph, LLAMA.vocabulary))
    assert layouts["layers.0.attn.q.weight"] == (Split(1),)
    assert layouts["layers.0.attn.proj.weight"] == layouts["layers.0.mlp.down.weight"] == (Split(0),)
    assert layouts["token.weight"] == (Split(0),)
    assert layouts["head.weight"] == (Split(1),)
    assert layouts["norm.weight"] == layouts["layers.3.norm2.weight"] == (B,)
    variables = {value.name for value in graph.with_role(Role.VARIABLE) if len(value.spec.shape) > 1}
    assert variables <= set(layouts)
    norms = list(norms_of(graph))
    assert len(norms) == 2 * LLAMA.layers + 1
    rule = trainer_axis(graph, 2, LLAMA.vocabulary)
    op = graph.by_name[norms[0]]
    assert [sbp for sbp in (B, Split(0), Split(1), Split(2)) if rule(op, op.inputs[0], sbp)] == [Split(1)]


def test_norms_of_heads_follow_the_heads() -> None:
    graph = training_graph(replace(LLAMA, head_norm=HeadNorm.HEAD), Training(8))
    assert len(list(norms_of(graph))) == 2 * LLAMA.layers + 1


def test_experts_are_whole_or_cut_as_mlps_are() -> None:
    layouts = dict(parameter_layouts(training_graph(EXPERTS, Training(8)), EXPERTS.vocabulary))
    assert layouts["layers.0.moe.up"] == layouts["layers.0.moe.gate"] == (B, Split(2))
    assert layouts["layers.0.moe.down"] == (B, Split(1))
    assert layouts["layers.0.moe.router"] == (B,)


def test_a_trainer_leaves_signatures_to_every_op_and_fewer_than_there_are() -> None:
    config = replace(PLAIN, dp=2, tp=2)
    free, limited = (space_of(asked(**pins), config, free_rules(config)) for pins in ({}, {"trainer": "megatron"}))
    counts = [(len(limited.options(op)), len(free.options(op))) for op in free.graph.ops]
    assert all(0 < few <= many for few, many in counts)
    assert sum(few for few, _ in counts) < 0.8 * sum(many for _, many in counts)


def test_what_pins_and_a_trainer_leave_nothing_of_is_told() -> None:
    with pytest.raises(ContradictionError, match="trainer = deepspeed"):
        search(
            asked(trainer=TargetTrainer.DEEPSPEED, pp=2, schedule=Schedule.ZBV),
            simulate=simulated,
            budget=Budget.of(20),
        )


@pytest.mark.parametrize("trainer", long_but(TargetTrainer, [*TargetTrainer].index(TargetTrainer.MEGATRON)))
@pytest.mark.parametrize("number", long_but([2, 5], 0))
def test_plans_of_a_trainers_space_are_said_whole(number: int, trainer: TargetTrainer) -> None:
    assert list(check(number, trainer, [])) == []
