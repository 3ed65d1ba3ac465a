"""Searches beside published configurations: both priced, judged and told apart, and every failure with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from experiments.published import configurations
from experiments.published import published_searches as module
from experiments.published.configurations import Configuration
from experiments.published.published_searches import PublishedComparison, compare, document, header, lines, summary
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.closed_form.calibration import shipped
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.request import Pins
from tests.experiments.conftest import Command
from tests.support.long_parameters import long_but

TINY = Configuration(
    "tiny",
    "nobody, table 0",
    GptConfig(layers=2, width=256, heads=4, sequence=128, vocabulary=512),
    "pair",
    Training(4, precision=Precision.BF16),
    Pins(dp=1, tp=1, cp=1, pp=2, micro_batch=1, schedule=Schedule.ONE_F_ONE_B, recompute=Recompute.FULL, zero_stage=0),
    "megatron",
    "mlm_apr2021_1.7B",
)
LONG_S = 300.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs; and no failure for what launches cost where products are as tiny."""
    pair = replace(find_cluster("dgx-a100:1"), name="pair", devices_per_node=2)
    monkeypatch.setattr(module, "find_cluster", lambda name: pair)
    monkeypatch.setattr(module, "MOST_OFF", 0.5)


@cache
def compared() -> PublishedComparison:
    return compare(TINY, LONG_S, shipped())


def test_both_are_priced_and_the_search_is_not_beaten() -> None:
    found = compared()
    assert found.failures == ()
    assert found.theirs is not None
    assert found.ours is not None
    assert (found.theirs.config.dp, found.theirs.config.pp, found.theirs.config.recompute) == (1, 2, Recompute.FULL)
    assert found.ratio == found.ours.step_s / found.theirs.step_s
    assert found.is_as_fast
    assert found.measured_s == 3.528018
    assert abs(found.theirs.off) <= module.MOST_OFF
    for plan in (found.theirs, found.ours):
        assert plan.causes.step_s == pytest.approx(plan.step_s, rel=1e-9)
        assert plan.tokens_per_s_per_gpu == pytest.approx(4 * 128 / plan.step_s / 2)
        assert plan.tflops_per_gpu > 0
    assert found.theirs.causes.recompute_s > 0
    assert found.theirs.judged.seconds is not None


def test_what_is_said_is_what_was_found() -> None:
    found = compared()
    assert json.loads(json.dumps(document(found)))["ratio"] == found.ratio
    theirs, ours, *notes = lines(found).splitlines()
    assert "tiny" in theirs
    assert "3.53 s" in theirs
    assert "full recompute" in theirs
    assert f"{found.ratio:.3f}" in ours
    assert any("recompute -" in note for note in notes)
    assert all(word in header() for word in ("ratio", "judge", "measured", "gap"))
    assert summary([found]).startswith("1 of 1 plans no slower")
    assert summary([found]).endswith("none failed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    long_but(
        [
            ({"pins": replace(TINY.pins, dp=3)}, "theirs: cannot be expressed: infeasible: no plan for 2 devices"),
            (
                {"pins": replace(TINY.pins, virtual_stages=2, schedule=Schedule.ZBV)},
                "theirs: cannot be expressed: infeasible: no plan for 2 devices",
            ),
        ],
        0,
    ),
    ids=["degrees", "stages"],
)
def test_what_cannot_be_expressed_has_failed(changes: dict[str, Pins], reason: str) -> None:
    found = compare(replace(TINY, measured_row="", **changes), LONG_S, shipped())
    assert found.theirs is None
    assert found.ours is not None
    assert (found.ratio, found.is_as_fast, found.judged_ratio, found.judge_agrees, found.why) == (None,) * 4 + ("",)
    assert found.measured_s is None
    (failure,) = found.failures
    assert failure.startswith(reason)
    assert f"failed  {reason}" in lines(found)
    assert summary([found]).endswith("failed: tiny")


@pytest.mark.long
def test_what_ran_and_is_called_infeasible_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise InfeasibleError("no plan fits 7 bytes")

    monkeypatch.setattr(module, "_pinned", too_large)
    found = compare(TINY, LONG_S, shipped())
    assert found.theirs is None
    assert found.ours is not None
    assert found.failures == ("theirs: called infeasible, though tiny ran: infeasible: no plan fits 7 bytes",)


def test_an_objective_off_its_simulation_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OFF", -1.0)
    found = compare(TINY, LONG_S, shipped())
    assert found.theirs is not None
    assert found.is_as_fast
    (failure,) = found.failures
    assert f"is {found.theirs.off:+.1%} off its simulation" in failure


def test_without_time_megatrons_rule_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(*_: object) -> None:
        raise OutOfTimeError("too late")

    monkeypatch.setattr(module, "_searched", too_late)
    found = compare(TINY, LONG_S, shipped())
    assert found.ours is None
    assert found.theirs is not None
    assert found.theirs.laid_out == module.BY_RULE
    assert found.failures == ("ours: no plan within 300 s",)
    assert module.BY_RULE in lines(found)


def test_the_command_compares_what_is_asked_for(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table = (TINY, replace(TINY, name="other"))
    monkeypatch.setattr(configurations, "CONFIGURATIONS", table)
    monkeypatch.setattr(module, "compare", lambda one, time_limit_s, fitted: replace(compared(), name=one.name))
    said = command("validate", "--search", "--only", "oth*", "--time-limit", "7", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["time_limit_s"] == 7
    assert [one["name"] for one in found["searches"]] == ["other"]
    assert found["searches"][0]["ours"]["step_s"] == compared().ours.step_s  # type: ignore[union-attr]
    assert "1 of 1 plans" in said.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--search", "--only", "megatron-2b"), "no published configuration has this name"),
        (("--search", "--time-limit", "0"), "expected a number of seconds above zero"),
        (("--search", "--time-limit", "soon"), "expected a number of seconds above zero"),
        (("--search", "--choices"), "--search: fits nothing"),
        (("--search", "--depths"), "fits nothing"),
        (("--only", "megatron-1t"), "--only: is of searches"),
        (("--time-limit", "5"), "--time-limit: is of searches"),
    ],
    ids=" ".join,
)
def test_wrong_flags_are_told(command: Command, words: tuple[str, ...], problem: str) -> None:
    said = command("validate", *words)
    assert said.code == 2
    assert said.out == ""
    assert problem in said.err
