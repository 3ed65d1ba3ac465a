"""Settings of a training on the command line, and models of other families through search, plan file and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from executor.checkpoint import latest
from experiments.planning.settings import read_training
from strategy.base.errors import InputError
from strategy.graph.ops.learning_rate import Decay
from strategy.models.mlp import MlpConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import read_plan
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType

if TYPE_CHECKING:
    from tests.conftest import Sbplan
    from tests.experiments.conftest import Command


def test_settings_are_read_by_the_type_of_their_field() -> None:
    given = ["optimizer=lamb", "lr=0.5", "decay=cosine", "decay_steps=9", "warm_up=2", "frozen=a.*,b", "dtype=float64"]
    found = read_training(12, [*given, "nesterov=true"])
    assert found == Training(
        12,
        optimizer=Optimizer.LAMB,
        lr=0.5,
        decay=Decay.COSINE,
        decay_steps=9,
        warm_up=2,
        frozen=("a.*", "b"),
        dtype=DType.FLOAT64,
        nesterov=True,
    )
    halves = read_training(12, ["precision=fp16", "loss_scale=1024", "scale_period=50", "skip_nonfinite=true"])
    assert halves == Training(12, precision=Precision.FP16, loss_scale=1024, scale_period=50, skip_nonfinite=True)
    assert read_training(12, []) == Training(12)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lr", r"--training: not a setting \(got 'lr', expected KEY=VALUE\)"),
        ("rl=1", "--training: unknown key"),
        ("global_batch=4", "--training: unknown key"),
        ("lr=fast", r"--training lr: a wrong value \(got 'fast', expected a number\)"),
        ("warm_up=1.5", "--training warm_up: a wrong value"),
        ("nesterov=yes", "--training nesterov: a wrong value"),
        ("optimizer=adamm", r"--training optimizer: unknown word \(got 'adamm'\); did you mean 'adam'"),
        ("lr=-1", "training: lr: not possible"),
        ("precision=fp8", "--training precision: unknown word"),
        ("precision=float32", "--training precision: unknown word"),
        ("dtype=bfloat16", "training: dtype: not possible .*set precision"),
        ("loss_scale=0", "training: loss_scale: not possible"),
        ("skip_nonfinite=1", "--training skip_nonfinite: a wrong value"),
        ("decay=cosine", "training: decay_steps: not possible"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_training(4, [setting])


def test_a_setting_is_given_once() -> None:
    with pytest.raises(InputError, match="given twice"):
        read_training(4, ["lr=1", "lr=2"])


@pytest.mark.mpi
@pytest.mark.long
def test_a_training_in_fp16_says_which_steps_it_skipped(
    command: Command, sbplan: Sbplan, mpiexec: str, tmp_path: Path
) -> None:
    """A scale that is far too large: steps are skipped until it fits, in a resumed run as in one piece."""
    settings = ["precision=fp16", "loss_scale=1e9", "scale_backoff=0.01"]
    place = ("--cluster", "local:2", "--json", "--out", tmp_path / "plan.json")
    searched = command("search", "mlp-tiny", *place, "--training", *settings)
    assert searched.code == 0, searched.err

    def trained(steps: int, *more: object) -> list[dict[str, object]]:
        done = sbplan("train", "plan.json", "--launch", "--steps", steps, "--json", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    *steps, summary = trained(6)
    skipped = [document["skipped"] for document in steps]
    assert skipped == sorted(skipped, reverse=True)
    assert 0 < sum(map(bool, skipped)) < 5
    assert summary["skipped_steps"] == sum(map(bool, skipped))
    assert steps[0]["grad_norm"] is None
    halves = [*trained(2, "--checkpoint", "saved")[:-1], *trained(6, "--checkpoint", "saved", "--resume")[:-1]]
    assert [document["loss"] for document in halves] == [document["loss"] for document in steps]


@pytest.mark.mpi
@pytest.mark.long
def test_a_model_without_tokens_is_searched_trained_and_resumed(
    command: Command, sbplan: Sbplan, mpiexec: str, tmp_path: Path
) -> None:
    """Muon with a schedule: what is learnt in four steps is learnt in two and two."""
    settings = ["optimizer=muon", "lr=0.02", "decay=cosine", "decay_steps=8", "warm_up=1"]
    place = ("--cluster", "local:2", "--json", "--out", tmp_path / "plan.json")
    searched = command("search", "mlp-tiny", *place, "--training", *settings)
    assert searched.code == 0, searched.err
    plan = read_plan(tmp_path / "plan.json")
    assert plan.model == MlpConfig(layers=2, features=64, width=128, classes=10)
    assert json.loads((tmp_path / "plan.json").read_text())["model"]["family"] == "mlp"
    assert plan.training.optimizer is Optimizer.MUON
    assert verify(plan) == []

    def trained(steps: int, *more: object) -> list[float]:
        done = sbplan("train", "plan.json", "--launch", "--steps", steps, "--json", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["loss"] for line in done.stdout.splitlines()[:-1]]

    whole = trained(4)
    halves = [*trained(2, "--checkpoint", "saved"), *trained(4, "--checkpoint", "saved", "--resume")]
    assert halves == whole
    assert whole[-1] < whole[0]
    checkpoint = latest(tmp_path / "saved")
    assert checkpoint is not None
    assert checkpoint.meta["data"] == "synthetic"
    refused = sbplan("train", "plan.json", "--launch", "--data", "plan.json", cwd=tmp_path)
    assert "the model is not trained on text" in refused.stderr


@pytest.mark.parametrize("key", ["seed", "warm_up", "decay_steps", "scale_period"])
def test_a_whole_number_that_no_plan_may_hold_is_refused(key: str) -> None:
    with pytest.raises(InputError, match=f"training: {key}: not possible .*64 bits"):
        read_training(8, [f"{key}={10**30}"])
    assert read_training(8, [f"seed={2**63 - 1}"]).seed == 2**63 - 1
    with pytest.raises(InputError, match="training: global_batch"):
        read_training(10**30, [])
