"""Writing: plans read back from their files alone; what a file cannot say is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.exports.of_plan import said_of_plan
from strategy.exports.trainer_file import trainer_file
from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.models import PRESETS, Model
from strategy.models.decoder import DecoderConfig
from strategy.plan.plan import Plan
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.architecture import description, of_model
from strategy.trainers.known_models import known_models
from strategy.trainers.trained import TrainerName
from strategy.trainers.write import read_back
from tests.support.long_parameters import long_but
from tests.support.trainer_pins import trainer_pins
from tests.support.trainer_plans import EXPERTS, GPT, LLAMA, megatron_layouts, pinned_plan

LEARNED = replace(LLAMA, learned_positions=True, rotary_base=0.0)
ONE_F_ONE_B = Schedule.ONE_F_ONE_B
PLANS: dict[str, tuple[Model, int, dict[str, Any]]] = {
    "samples": (GPT, 2, {"dp": 2}),
    "everything shared out": (LLAMA, 2, {"dp": 2, "zero_stage": 3}),
    "gradients shared out": (GPT, 2, {"dp": 2, "zero_stage": 2}),
    "columns and rows": (GPT, 2, {"tp": 2, "layouts": megatron_layouts(GPT, by_position=False)}),
    "norms by position": (GPT, 2, {"tp": 2, "trainer": TargetTrainer.MEGATRON}),
    "samples and columns": (LLAMA, 4, {"dp": 2, "tp": 2, "trainer": TargetTrainer.MEGATRON}),
    "stages": (GPT, 2, {"pp": 2, "micro_batch": 2, "schedule": ONE_F_ONE_B}),
    "stages and samples": (LLAMA, 4, {"pp": 2, "dp": 2, "micro_batch": 1, "schedule": ONE_F_ONE_B}),
    "laps": (LLAMA, 2, {"pp": 2, "virtual_stages": 2, "schedule": Schedule.INTERLEAVED, "micro_batch": 2}),
    "layers again": (LLAMA, 2, {"dp": 2, "recompute": Recompute.FULL}),
    "attention again": (GPT, 2, {"dp": 2, "recompute": Recompute.SELECTIVE}),
    "learned positions": (LEARNED, 2, {"tp": 2, "trainer": TargetTrainer.MEGATRON}),
    "experts": (EXPERTS, 2, {"dp": 2, "ep": 2}),
}
DEEPSPEED_CANNOT = {"laps", "experts", "attention again"}


@pytest.fixture(scope="module", params=long_but(PLANS, 1, 5, 8, 11))
def case(request: pytest.FixtureRequest) -> tuple[str, Plan]:
    model, gpus, pins = PLANS[request.param]
    return request.param, pinned_plan(model, gpus, **pins)


def stripped(text: str) -> str:
    """Without comments and with a key that nobody knows."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return "\n".join(["--made-by somebody", *lines]) if text.startswith("--") else text


def test_plans_are_read_back_from_their_files_alone(case: tuple[str, Plan]) -> None:
    name, plan = case
    wanted = said_of_plan(plan, TrainerName.MEGATRON)
    assert wanted.left_out == ()
    written = trainer_file(plan, TrainerName.MEGATRON, "run.sh")
    assert written.cannot_say == ()
    files = {file: stripped(text) for file, text in written.files.items()}
    found = read_back(files, TrainerName.MEGATRON)
    assert replace(found.trained, model=wanted.trained.model) == wanted.trained
    assert description(found.trained.model, found.trained.sequence) == plan.model
    assert found.not_understood == ("made-by",)
    called = trainer_file(plan, TrainerName.DEEPSPEED, "run.json")
    assert bool(called.cannot_say) == (name in DEEPSPEED_CANNOT), called.cannot_say
    assert list(called.files) == ["run.json", "run__args.sh"]


def test_what_departs_from_columns_and_rows_is_told() -> None:
    plan = pinned_plan(GPT, 2, tp=2)
    (left_out,) = trainer_file(plan, TrainerName.MEGATRON, "x.sh").cannot_say[:1]
    assert left_out.startswith(("parameters laid out otherwise", "norms laid out unlike"))


def test_what_no_file_has_words_for_is_told() -> None:
    plan = pinned_plan(LLAMA, 2, dp=2, tiles=2)
    assert any(line.startswith("tiles 2") for line in trainer_file(plan, TrainerName.MEGATRON, "x").cannot_say)
    plan = pinned_plan(GPT, 2, pp=2, micro_batch=2, schedule=Schedule.ZB_H1)
    assert trainer_file(plan, TrainerName.MEGATRON, "x").cannot_say == ("schedule zb-h1: the file says 1f1b",)


@pytest.mark.long
def test_torchtitan_names_a_flavour() -> None:
    flavour = known_models()["torchtitan/llama3/debugmodel"]
    model = description(flavour, 128)
    assert isinstance(model, DecoderConfig)
    plan = pinned_plan(model, 2, dp=2, zero_stage=3)
    written = trainer_file(plan, TrainerName.TORCHTITAN, "x.toml")
    assert written.cannot_say == ()
    assert 'flavor = "debugmodel"' in written.files["x.toml"]
    shared = pinned_plan(model, 2, dp=2, zero_stage=1)
    assert trainer_file(shared, TrainerName.TORCHTITAN, "x").cannot_say == ("zero 1: the file says 2",)
    stages = pinned_plan(model, 2, pp=2, micro_batch=2, schedule=ONE_F_ONE_B)
    assert trainer_file(stages, TrainerName.TORCHTITAN, "x").cannot_say == ()
    with pytest.raises(InputError, match="none of its flavours is like this one"):
        trainer_file(pinned_plan(GPT, 2, dp=2), TrainerName.TORCHTITAN, "x")


def test_groups_are_written_and_read_back() -> None:
    model = description(known_models()["torchtitan/llama3/debugmodel"], 128)
    plan = pinned_plan(model, 4, dp=4, zero_stage=3, zero_group=2)
    written = trainer_file(plan, TrainerName.TORCHTITAN, "x.toml")
    assert written.cannot_say == ()
    for line in ("data_parallel_replicate_degree = 2", "data_parallel_shard_degree = 2"):
        assert line in written.files["x.toml"]
    pins = trainer_pins(read_back(written.files, TrainerName.TORCHTITAN).trained, 4)
    assert (pins.dp, pins.zero_stage, pins.zero_group) == (4, 3, 2)
    called = trainer_file(plan, TrainerName.MEGATRON, "x.sh")
    assert called.cannot_say == ()
    assert "--num-distributed-optimizer-instances 2" in called.files["x.sh"]
    assert "replicas 2: the file says 1" in trainer_file(plan, TrainerName.DEEPSPEED, "x.json").cannot_say


def test_what_is_no_decoder_of_text_is_refused() -> None:
    with pytest.raises(InputError, match="cannot say this model"):
        of_model(PRESETS["resnet50"].model)


@pytest.mark.parametrize("name", [name for name in known_models() if name.startswith("torchtitan/")])
def test_a_known_model_is_the_same_after_a_description(name: str) -> None:
    known = known_models()[name]
    if known.kind == "decoder" and not known.pattern:
        model = description(known, 4096)
        assert description(of_model(model), 4096) == model
