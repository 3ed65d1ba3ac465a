"""What is written for DeepSpeed and torchtitan is what their own configuration classes read, where they are installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.decoder import DecoderConfig
from strategy.plan.plan import Plan
from strategy.trainers.architecture import description
from strategy.trainers.known_models import known_models
from strategy.trainers.trained import TrainerName
from strategy.trainers.write import write_configuration
from tests.support.trainer_plans import GPT, LLAMA, pinned_plan

PINS: dict[str, tuple[int, dict[str, Any]]] = {
    "samples": (2, {"dp": 2}),
    "gradients shared out": (2, {"dp": 2, "zero_stage": 2}),
    "everything shared out": (4, {"dp": 4, "zero_stage": 3}),
    "stages": (4, {"dp": 2, "pp": 2, "micro_batch": 1, "schedule": Schedule.ONE_F_ONE_B}),
    "layers again": (2, {"dp": 2, "recompute": Recompute.FULL}),
}


def debug_model() -> DecoderConfig:
    model = description(known_models()["torchtitan/llama3/debugmodel"], 128)
    assert isinstance(model, DecoderConfig)
    return model


def planned(name: str, model: Model) -> Plan:
    gpus, pins = PINS[name]
    return pinned_plan(model, gpus, **pins)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("name", PINS)
def test_deepspeed_reads_what_the_plan_says(name: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    reading = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed: pip install deepspeed")
    plan = planned(name, model)
    config, training = plan.config, plan.training
    said = json.loads(write_configuration(plan, TrainerName.DEEPSPEED, "run.json").files["run.json"])
    found = reading.DeepSpeedConfig(said, SimpleNamespace(get_data_parallel_world_size=lambda: config.dp))
    assert (found.train_batch_size, found.train_micro_batch_size_per_gpu) == (training.global_batch, config.micro_batch)
    assert found.gradient_accumulation_steps == config.num_micro_batches
    assert (found.zero_config.stage, found.bfloat16_config.enabled) == (config.zero_stage, True)
    assert found.gradient_clipping == pytest.approx(training.max_norm if training.max_norm < 1e30 else 0.0)
    assert found.optimizer_params["lr"] == training.lr


@pytest.mark.parametrize("name", PINS)
def test_torchtitan_reads_what_the_plan_says(name: str, tmp_path: Path) -> None:
    reading = pytest.importorskip("torchtitan.config", reason="torchtitan is not installed: pip install torchtitan")
    plan = planned(name, debug_model())
    config = plan.config
    path = tmp_path / "run.toml"
    path.write_text(write_configuration(plan, TrainerName.TORCHTITAN, "run.toml").files["run.toml"], encoding="utf-8")
    found = reading.ConfigManager().parse_args(["--job.config_file", str(path)])
    assert found.training.global_batch_size == plan.training.global_batch
    assert found.parallelism.pipeline_parallel_degree == config.pp
