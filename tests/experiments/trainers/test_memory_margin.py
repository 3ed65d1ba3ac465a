"""`sbplan search --fit-probability`: plans that keep memory free, as verify holds them to, and who is told of what."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.explanation.why_not import pinned_request
from experiments.trainers import memory_margin
from experiments.trainers.memory_margin import FIRST_SHARE, fit_problems, found_with, missing_bytes, trainer_price
from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError, PlanError, present
from strategy.base.status import Status
from strategy.closed_form.calibration import shipped
from strategy.hardware.presets import find_cluster
from strategy.passes.training import Training
from strategy.plan.plan import FitClaim, Plan, digest, document, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.search.search_result import SearchResult
from strategy.space.request import Pins, Request
from strategy.space.trainer_space import TargetTrainer
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
    assert plan.claims.memory_limit_bytes == int(DEVICE / ERRORS.margin("megatron-core", 0.95)) > 0.9 * DEVICE
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
    plans: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_plan(plans["megatron"])
    price = trainer_price(plan, TargetTrainer.MEGATRON)
    tight = replace(price, limit_bytes=int(1.01 * price.needed_memory_bytes), fit_probability=0.6)
    monkeypatch.setattr(memory_margin, "trainer_price", lambda plan, trainer: tight)
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


Solve = Callable[[Request, Budget], SearchResult]


def holding(plan: Plan, limits: list[int]) -> Solve:
    """A search whose plan fills what it gets."""

    def solve(asked: Request, budget: Budget) -> SearchResult:
        limits.append(asked.memory_limit_bytes)
        claims = replace(plan.claims, peak_memory_bytes=(asked.memory_limit_bytes,))
        return SearchResult(replace(plan, claims=claims), Status.FEASIBLE, (), 1, 0.0, interrupted=False)

    return solve


@pytest.fixture
def asked(plans: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, Request]:
    """A plan and its request; Megatron's file needs 1.2 times what the plan counts, and 3 GiB."""
    plan = read_plan(plans["megatron"])
    price = trainer_price(plan, TargetTrainer.MEGATRON)

    def needing(plan: Plan, trainer: TargetTrainer) -> object:
        needed = int(1.2 * max(plan.claims.peak_memory_bytes)) + 3 * 2**30
        return replace(price, memory_bytes={"all": needed, "kept by the allocator": 0}, fit_probability=0.5)

    monkeypatch.setattr(memory_margin, "trainer_price", needing)
    whole = replace(plan, claims=replace(plan.claims, memory_limit_bytes=DEVICE))
    return plan, pinned_request(whole, Pins(trainer=TargetTrainer.MEGATRON))


def test_a_search_for_a_trainer_goes_on_under_less_memory_until_its_file_fits(asked: tuple[Plan, Request]) -> None:
    plan, wanted = asked
    limits: list[int] = []
    found = found_with(wanted, 0.95, holding(plan, limits), UNLIMITED)
    assert 2 <= len(limits) <= 8
    assert limits == sorted(limits, reverse=True)
    price = memory_margin.trainer_price(found.plan, TargetTrainer.MEGATRON)
    assert missing_bytes(price, 0.95) <= 0
    assert price.needed_memory_bytes > 0.85 * DEVICE, "not far below what would do"


def test_a_first_search_that_finds_nothing_in_its_part_of_the_time_has_the_rest(asked: tuple[Plan, Request]) -> None:
    plan, wanted = asked
    fill, parts = holding(plan, []), list[float]()

    def solve(one: Request, budget: Budget) -> SearchResult:
        parts.append(budget.left_s())
        if len(parts) == 1:
            raise OutOfTimeError("no plan was found in time")
        return fill(one, budget)

    found_with(wanted, 0.95, solve, Budget.of(100.0))
    assert parts[:2] == pytest.approx([100 * FIRST_SHARE, 100.0], abs=5.0)

    def slow(one: Request, budget: Budget) -> SearchResult:
        parts.append(budget.left_s())
        raise OutOfTimeError("no plan was found in time")

    parts.clear()
    with pytest.raises(OutOfTimeError, match="in time"):
        found_with(wanted, 0.95, slow, Budget.of(100.0))
    assert len(parts) == 2, "and then it is over"


@pytest.mark.parametrize(("later_s", "answer_s"), [(0.5, 0.5), (2.0, 1.0), (None, 1.0)])
def test_a_first_search_that_was_short_of_time_is_followed_by_one_with_the_rest(
    asked: tuple[Plan, Request], later_s: float | None, answer_s: float
) -> None:
    """Of both, the faster plan is the answer; none that came later, the first."""
    plan, wanted = asked
    parts = list[float]()

    def solve(one: Request, budget: Budget) -> SearchResult:
        parts.append(budget.left_s())
        if len(parts) == 2 and later_s is None:
            raise OutOfTimeError("no plan was found in time")
        step_s = 1.0 if len(parts) == 1 else present(later_s, "a step")
        claims = replace(plan.claims, peak_memory_bytes=(DEVICE // 2,), step_time_s=step_s)
        return SearchResult(replace(plan, claims=claims), Status.LIMIT, (), 1, 0.0)

    found = found_with(wanted, 0.95, solve, Budget.of(100.0))
    assert parts == pytest.approx([100 * FIRST_SHARE, 100.0], abs=5.0)
    assert found.plan.claims.step_time_s == answer_s
    assert found.plan.claims.fit == FitClaim(0.95, TargetTrainer.MEGATRON)


def test_where_no_file_fits_the_best_probability_is_told(asked: tuple[Plan, Request]) -> None:
    plan, wanted = asked
    calls: list[int] = []
    fill = holding(plan, calls)

    def solve(one: Request, budget: Budget) -> SearchResult:
        if calls:
            raise InfeasibleError("nothing")
        return fill(one, budget)

    with pytest.raises(OutOfTimeError, match=r"probability 0\.95: the best of those found fits with 0\.50"):
        found_with(wanted, 0.95, solve, UNLIMITED)

    def nothing(one: Request, budget: Budget) -> SearchResult:
        raise InfeasibleError("nothing")

    with pytest.raises(InfeasibleError, match="nothing"):
        found_with(wanted, 0.95, nothing, UNLIMITED)
    with pytest.raises(OutOfTimeError, match="raise --time-limit"):
        found_with(wanted, 0.95, fill, Budget.of(0.0))


def never(one: Request, budget: Budget) -> SearchResult:
    raise AssertionError("nothing is searched")


def test_devices_of_several_types_are_refused() -> None:
    alike = request(8, Training(8))
    unlike = replace(alike, cost=replace(alike.cost, cluster=mixed(1.0, 2.0)))
    with pytest.raises(InputError, match="nodes of one type"):
        found_with(unlike, 0.9, never, UNLIMITED)
