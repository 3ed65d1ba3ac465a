"""What is written for DeepSpeed and torchtitan is what their own classes read, where these are installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strategy.exports.of_plan import said_of_plan
from strategy.exports.trainer_file import trainer_file
from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.decoder import DecoderConfig
from strategy.plan.plan import Plan
from strategy.trainers.architecture import description
from strategy.trainers.known_models import known_models
from strategy.trainers.trained import TrainerName
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
    reading = pytest.importorskip(
        "deepspeed.runtime.config", reason="DeepSpeed is not installed: pip install deepspeed"
    )
    monkeypatch.setattr(reading.dist, "get_rank", lambda *_: 0)  # no job is running: the number of ranks is said below
    plan = planned(name, model)
    config, training = plan.config, plan.training
    said = json.loads(trainer_file(plan, TrainerName.DEEPSPEED, "run.json").files["run.json"])
    found = reading.DeepSpeedConfig(said, SimpleNamespace(get_data_parallel_world_size=lambda: config.dp))
    assert (found.train_batch_size, found.train_micro_batch_size_per_gpu) == (training.global_batch, config.micro_batch)
    assert found.gradient_accumulation_steps == config.num_micro_batches
    assert (found.zero_config.stage, found.bfloat16_config.enabled) == (config.zero_stage, True)
    assert found.gradient_clipping == pytest.approx(training.max_norm if training.max_norm < 1e30 else 0.0)


def torchtitan() -> Any:
    """The classes that read TOML files: up to 0.2."""
    reason = "torchtitan up to 0.2 is not installed: pip install 'torchtitan<0.3'"
    found = pytest.importorskip("torchtitan.config", reason=reason)
    return found if hasattr(found, "JobConfig") else pytest.skip(reason)


@pytest.mark.parametrize("name", PINS)
def test_torchtitan_reads_what_the_plan_says(name: str, tmp_path: Path) -> None:
    reading, plan = torchtitan(), planned(name, debug_model())
    config, training = plan.config, plan.training
    path = tmp_path / "run.toml"
    written = trainer_file(plan, TrainerName.TORCHTITAN, "run.toml")
    path.write_text(written.files["run.toml"], encoding="utf-8")
    found = reading.ConfigManager().parse_args(["--job.config_file", str(path)])
    # Ranks of a plan may share out the optimiser's state where nobody asks for it: no file says so, and that is told.
    zero = said_of_plan(plan, TrainerName.TORCHTITAN).trained.zero
    assert written.cannot_say == (("zero 1: the file says 2",) if zero == 1 else ())
    assert (found.model.name, found.model.flavor, found.training.seq_len) == ("llama3", "debugmodel", 128)
    assert (found.training.global_batch_size, found.training.max_norm) == (training.global_batch, training.max_norm)
    of_rank = config.micro_batch if config.pp == 1 else config.micro_batch * config.num_micro_batches
    assert found.training.local_batch_size == of_rank
    degrees = found.parallelism
    assert (degrees.pipeline_parallel_degree, degrees.tensor_parallel_degree) == (config.pp, config.tp)
    shares = degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree
    assert shares == ((1, config.dp) if zero else (config.dp, 1))
    assert found.activation_checkpoint.mode == ("full" if config.recompute is Recompute.FULL else "none")


def test_torchtitan_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    reading, path = torchtitan(), tmp_path / "run.toml"
    path.write_text("[parallelism]\ntensor_degree = 2\n", encoding="utf-8")
    with pytest.raises((SystemExit, ValueError, TypeError)):
        reading.ConfigManager().parse_args(["--job.config_file", str(path)])
