"""`sbplan search --fit-probability`: plans that keep memory free, as verify holds them to, and who is told of what."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.planning.request import with_fit
from strategy.base.errors import InfeasibleError, InputError, PlanError
from strategy.closed_form.calibration import shipped
from strategy.exports.trainer_file import file_price
from strategy.exports.trainer_fit import claiming_fit, fit_problems
from strategy.hardware.presets import find_cluster
from strategy.passes.training import Training
from strategy.plan.plan import FitClaim, digest, document, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.space.request import Pins
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.trained import TrainerName
from tests.support.mixed_clusters import mixed
from tests.support.small_plans import exchange_left_alone, request

PINS = '[config]\ntp = 1\npp = 1\nmicro_batch = 2\nrecompute = "none"\nzero_stage = 0\n'
WORDS = ("gpt-tiny", "--cluster", "dgx-h100:1", "--global-batch", "16", "--seq", "32", "--time-limit", "60")
DEVICE = find_cluster("dgx-h100:1").largest_memory_bytes
ERRORS = shipped().memory
assert ERRORS is not None


@pytest.fixture(scope="module")
@exchange_left_alone()
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plan that fits with probability 0.95, and one for Megatron."""
    folder = tmp_path_factory.mktemp("margin")
    (folder / "pins.toml").write_text(PINS)
    found = {"own": folder / "own.json", "megatron": folder / "megatron.json"}
    words = ("search", *WORDS, "--pin", str(folder / "pins.toml"), "--fit-probability", "0.95")
    assert main([*words, "--out", str(found["own"])]) in (0, 4)
    assert main([*words, "--for", "megatron", "--out", str(found["megatron"])]) in (0, 4)
    return found


def test_memory_is_kept_free_by_the_errors_of_systems_that_were_not_seen(plans: dict[str, Path]) -> None:
    plan = read_plan(plans["own"])
    assert plan.claims.fit == FitClaim(0.95)
    assert plan.claims.memory_limit_bytes == math.floor(DEVICE / ERRORS.margin("", 0.95)) < 0.8 * DEVICE
    assert verify(plan) == []


def test_a_trainers_file_is_priced_with_the_errors_of_its_runs(
    plans: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = read_plan(plans["megatron"])
    assert plan.claims.fit == FitClaim(0.95, TargetTrainer.MEGATRON)
    assert plan.claims.memory_limit_bytes == DEVICE
    assert fit_problems(plan) == []
    assert main(["verify", str(plans["megatron"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fit_probability"] == 0.95


def test_verify_refuses_memory_that_a_claim_does_not_leave_free(plans: dict[str, Path]) -> None:
    plan = read_plan(plans["own"])
    greedy = replace(plan, claims=replace(plan.claims, memory_limit_bytes=DEVICE))
    (problem,) = verify(greedy)
    kept = plan.claims.memory_limit_bytes
    assert problem == f"memory_limit_bytes: {DEVICE}, a device has {DEVICE}; {kept} fit with probability 0.95"
    bolder = replace(plan, claims=replace(plan.claims, fit=FitClaim(0.99)))
    assert "fit with probability 0.99" in verify(bolder)[0]


def test_verify_refuses_a_trainers_file_that_does_not_fit(
    plans: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = read_plan(plans["megatron"])
    limit = max(*plan.claims.peak_memory_bytes, int(1.01 * file_price(plan, TrainerName.MEGATRON).needed_memory_bytes))
    plan = replace(plan, claims=replace(plan.claims, memory_limit_bytes=limit), certificate=None)
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    assert main(["verify", str(path)]) == 2
    assert "is claimed to fit with probability 0.95, but" in capsys.readouterr().err


@pytest.mark.parametrize("probability", [0.4, 1.0, "0.9", None])
def test_a_claim_that_cannot_be_is_no_plan(plans: dict[str, Path], tmp_path: Path, probability: object) -> None:
    content = document(read_plan(plans["own"]), with_hash=False)
    content["fit"] = {"probability": probability, "trainer": None}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content | {"plan_hash": digest(content)}))
    with pytest.raises(PlanError, match="fit"):
        read_plan(path)


def test_a_plan_that_claims_nothing_is_written_as_before(plans: dict[str, Path]) -> None:
    plan = read_plan(plans["own"])
    assert "fit" not in document(replace(plan, claims=replace(plan.claims, fit=None)))


@pytest.mark.parametrize("words", ["0.49", "1", "-1", "nan", "much", ""])
def test_what_is_no_probability_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", *WORDS, "--fit-probability", words]) == 2
    assert "at least 0.5 and at most 0.99, such as 0.95" in capsys.readouterr().err


def test_a_plan_whose_file_its_trainer_does_not_hold_is_none(plans: dict[str, Path]) -> None:
    plan, pins = read_plan(plans["megatron"]), Pins(trainer=TargetTrainer.MEGATRON, fit_probability=0.95)
    bare = replace(plan, claims=replace(plan.claims, fit=None))
    assert claiming_fit(bare, pins).claims.fit == FitClaim(0.95, TargetTrainer.MEGATRON)
    assert claiming_fit(bare, replace(pins, fit_probability=None)).claims.fit is None
    price = file_price(plan, TrainerName.MEGATRON)
    short = replace(bare, claims=replace(bare.claims, memory_limit_bytes=price.needed_memory_bytes - 1))
    for probability in (None, 0.95):
        with pytest.raises(InfeasibleError, match="megatron does not hold the plan: its file needs"):
            claiming_fit(short, replace(pins, fit_probability=probability))


def test_devices_of_several_types_are_refused() -> None:
    alike = request(8, Training(8))
    unlike = replace(alike, cost=replace(alike.cost, cluster=mixed(1.0, 2.0)))
    with pytest.raises(InputError, match="nodes of one type"):
        with_fit(unlike, 0.9)
