"""`sbplan search --for`: a plan that the trainer can be told, and what its limits cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.planning.request import for_trainer
from experiments.trainers.trainer_search import (
    TrainerAnswer,
    limited_budget,
    limits_cost,
    trainer_document,
    trainer_text,
)
from strategy.base.budget import Budget
from strategy.base.errors import InputError
from strategy.passes.training import Training
from strategy.plan.plan import Plan, read_plan
from strategy.search.search_result import SearchResult
from strategy.space.request import Pins
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.architecture import description
from strategy.trainers.known_models import known_models
from tests.support.small_plans import exchange_left_alone, request
from tests.support.trainer_plans import EXPERTS, GPT, LLAMA

PINS = '[config]\ntp = 2\npp = 1\nmicro_batch = 2\nrecompute = "none"\nzero_stage = 0\n'


@pytest.fixture(scope="module")
@exchange_left_alone()
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path, str]:
    """A search for Megatron on two GPUs, its plan, and its file's name."""
    folder = tmp_path_factory.mktemp("megatron")
    (folder / "pins.toml").write_text(PINS)
    words = ["search", "gpt-tiny", "--gpus", "8", "--gpu", "h100", "--global-batch", "16", "--seq", "32",
             "--pin", str(folder / "pins.toml"), "--for", "megatron", "--time-limit", "60"]  # fmt: skip
    out = folder / "plan.json"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[dict[str, object]] = []
        patch.setattr("experiments.verbs.search.emit", lines.append)
        assert main([*words, "--json", "--out", str(out)]) in (0, 4)
    return lines[0], out, "run.sh"


@pytest.mark.long
def test_the_answer_is_said_whole_by_the_trainers_file(
    answer: tuple[dict[str, object], Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found, path, name = answer
    trainer = found["trainer"]
    assert isinstance(trainer, dict)
    assert (trainer["name"], trainer["cannot_say"]) == ("megatron", [])
    assert trainer["price"]["step_time_s"] > 0
    assert trainer["free"]["lower_bound_s"] <= trainer["free"]["objective_s"]
    assert trainer["limits_cost"]["least"] <= trainer["limits_cost"]["seen"] <= trainer["limits_cost"]["most"]
    out = path.with_name(name)
    assert main(["export", str(path), "--to", "megatron", "--out", str(out)]) == 0
    assert "read back, it is the same plan" in capsys.readouterr().err
    assert "--sequence-parallel\n" in out.read_text()


@pytest.mark.long
def test_the_certificate_says_whose_space_it_is_of(
    answer: tuple[dict[str, object], Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, path, _ = answer
    assert main(["verify", str(path)]) == 0
    assert "the bound is proved for all configurations, " in capsys.readouterr().err
    plan = read_plan(path)
    assert plan.certificate is not None
    assert plan.certificate["pinned"]["trainer"] == "megatron"


def claiming(plan: Plan, objective_s: float, lower_bound_s: float) -> Plan:
    return replace(plan, claims=replace(plan.claims, objective_s=objective_s, lower_bound_s=lower_bound_s))


def test_what_limits_cost_is_seen_sure_or_at_most(answer: tuple[dict[str, object], Path, str]) -> None:
    plan = read_plan(answer[1])
    own, free = claiming(plan, 1.2, 1.1), claiming(plan, 1.0, 0.8)
    cost = limits_cost(own, free)
    assert (cost.seen, cost.least, cost.most) == pytest.approx((0.2, 0.1, 0.5))
    result = SearchResult(free, read_status(plan), (), 1, 0.0, False)
    known = TrainerAnswer(TargetTrainer.MEGATRON, (), None, result)
    assert trainer_text(own, known) == "megatron's limits cost 20.0% (without them 1 s); at most 50.0%, by the bound"
    assert "or less: the search within them was not over" in trainer_text(claiming(plan, 1.2, 0.9), known)
    assert "nothing faster was found; they cost at most 12.5%" in trainer_text(claiming(plan, 0.9, 0.9), known)
    assert "\ntrained without a loss" in trainer_text(own, replace(known, without=("a loss",)))
    unknown = replace(known, free=None)
    assert trainer_document(own, unknown)["limits_cost"] is None
    assert "is not known" in trainer_text(own, unknown)


def read_status(plan: Plan) -> object:
    from strategy.base.status import Status

    return Status(plan.claims.status)


def test_what_a_trainer_cannot_be_told_of_is_refused_before_the_search() -> None:
    asked = request(2, Training(8), model=GPT)
    limited, without = for_trainer(asked, TargetTrainer.MEGATRON)
    assert (limited.pins.trainer, without) == (TargetTrainer.MEGATRON, ())
    with pytest.raises(InputError, match="none of its flavours is like this one"):
        for_trainer(asked, TargetTrainer.TORCHTITAN)
    with pytest.raises(InputError, match="no experts of this kind"):
        for_trainer(replace(asked, model=EXPERTS), TargetTrainer.DEEPSPEED)
    other = replace(asked, model=LLAMA, pins=Pins(trainer=TargetTrainer.DEEPSPEED))
    with pytest.raises(InputError, match="two trainers"):
        for_trainer(other, TargetTrainer.MEGATRON)


def test_torchtitan_has_no_balancing_loss() -> None:
    flavour = description(known_models()["torchtitan/qwen3/debugmodel_moe"], 128)
    asked = request(2, Training(8), model=replace(flavour, balance=0.001))
    limited, without = for_trainer(asked, TargetTrainer.TORCHTITAN)
    assert limited.model == flavour
    assert without == ("the share of 0.001 of the experts' balancing loss: torchtitan balances them by a bias",)
    kept, nothing = for_trainer(asked, TargetTrainer.MEGATRON)
    assert (kept.model, nothing) == (asked.model, ())


@pytest.mark.parametrize(("limit_s", "limited_s"), [(10, 10), (45, 45), (60, 45), (100, 65)])
def test_a_short_search_is_all_within_the_limits(limit_s: float, limited_s: float) -> None:
    assert limited_budget(Budget.of(limit_s)).left_s() == pytest.approx(limited_s, abs=0.5)


def test_a_model_that_no_trainer_has_words_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["search", "resnet50", "--cluster", "dgx-h100:1", "--for", "megatron", "--out", str(tmp_path / "p.json")]
    assert main(words) == 2
    assert "cannot say this model" in capsys.readouterr().err
    assert json.dumps(list(tmp_path.iterdir())) == "[]"
