"""`sbplan export`: files are written whole, or refused with what they would leave out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli import main
from strategy.plan.plan import write_plan
from tests.support.trainer_plans import GPT, pinned_plan


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    write_plan(pinned_plan(GPT, 2, dp=2, tiles=2), path)
    return path


def test_what_a_trainer_cannot_say_is_refused_unless_lossy(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.sh"
    assert main(["export", str(plan), "--to", "megatron", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "  - tiles 2" in said
    assert "search for one that it can be told, with --for megatron, or write this one" in said
    assert not out.exists()
    assert main(["export", str(plan), "--to", "megatron", "--out", str(out), "--lossy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == [str(out)]
    assert [line.partition(":")[0] for line in found["cannot_say"]] == ["tiles 2"]
    assert "--num-layers 4\n" in out.read_text()


def test_the_files_are_named_after_the_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(plan), "--to", "deepspeed", "--lossy"]) == 0
    written = plan.with_name("plan-deepspeed.json")
    assert json.loads(written.read_text())["train_batch_size"] == 16
    caller = plan.with_name("plan-deepspeed__args.sh")
    assert "--deepspeed-config plan-deepspeed.json\n" in caller.read_text()
    capsys.readouterr()
    assert main(["price", str(caller), "--gpu", "h100", "--no-search", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read"]["global_batch"] == 16


def test_a_model_that_torchtitan_does_not_name_is_refused(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(plan), "--to", "torchtitan", "--lossy"]) == 2
    assert "torchtitan names its models" in capsys.readouterr().err
