"""The demo end to end, short: the machine that runs the tests is shared, so no accuracy is asked of it here."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from strategy.base.files import read_json
from strategy.cost.calibrate import read_calibration
from strategy.plan.plan import read_plan
from strategy.plan.verify import verify
from tests.mpi.jobs import Ended, Job, run, run_well
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.mpi
RANKS, BLOCKS, STEPS = 2, 3, 3
KEYS = {
    "plans",
    "chosen",
    "regret",
    "error_before_refine",
    "error_after_refine",
    "half_width",
    "loss_first",
    "loss_last",
    "max_loss_difference",
}
PLAN_KEYS = {"name", "config", "predicted_s", "measured_s", "error", "samples_s", "pids"}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """The demo's end, and the folder that it filled."""
    folder = tmp_path_factory.mktemp("demo")
    arguments = ("--ranks", RANKS, "--blocks", BLOCKS, "--steps", STEPS, "--out", "shown", "--json")
    return run_well(folder, "demo", *arguments, timeout_s=280), folder / "shown"


@pytest.mark.long
def test_the_document_holds_what_others_read(demo: tuple[Ended, Path]) -> None:
    (document,) = demo[0].documents
    assert set(document) >= KEYS
    plans: list[dict[str, Any]] = document["plans"]
    assert len(plans) >= 4
    assert all(set(plan) >= PLAN_KEYS for plan in plans)
    names = [plan["name"] for plan in plans]
    assert len(set(names)) == len(names)
    assert document["chosen"] in names
    for plan in plans:
        assert len(plan["samples_s"]) == BLOCKS * (STEPS - 1)
        assert min(plan["samples_s"]) <= plan["measured_s"] <= max(plan["samples_s"])
        assert plan["predicted_s"] > 0
        assert len(set(plan["pids"])) == RANKS
        assert plan["error"] == pytest.approx(abs(plan["refined_s"] - plan["measured_s"]) / plan["measured_s"])
        config = plan["config"]
        assert config["dp"] * config["tp"] * config["pp"] == RANKS
    fastest = min(plan["measured_s"] for plan in plans)
    chosen = next(plan for plan in plans if plan["name"] == document["chosen"])
    assert document["regret"] == pytest.approx(chosen["measured_s"] / fastest - 1)
    assert document["error_after_refine"] == pytest.approx(sum(plan["error"] for plan in plans) / len(plans))
    assert set(document["half_width"]) == {"error_before_refine", "error_after_refine", "regret"}
    assert all(width >= 0 for width in document["half_width"].values())


@pytest.mark.long
def test_all_plans_learn_the_same(demo: tuple[Ended, Path]) -> None:
    (document,) = demo[0].documents
    assert document["max_loss_difference"] <= 1e-3
    assert document["loss_last"] < document["loss_first"]
    losses = [plan["losses"] for plan in document["plans"]]
    assert {len(found) for found in losses} == {BLOCKS * STEPS}
    spread = max(max(at_step) - min(at_step) for at_step in zip(*losses, strict=True))
    assert document["max_loss_difference"] == pytest.approx(spread, abs=1e-12)


@pytest.mark.long
def test_what_the_demo_leaves_is_whole(demo: tuple[Ended, Path]) -> None:
    ended, folder = demo
    (document,) = ended.documents
    for plan in document["plans"]:
        found = read_plan(folder / f"{plan['name']}.json")
        assert verify(found) == []
        assert found.plan_hash == plan["plan_hash"]
        measured: Any = read_json(folder / f"{plan['name']}.run.json")
        assert measured["pids"] == plan["pids"]
    assert verify(read_plan(folder / "plan.json")) == []
    base, refined = (read_calibration(folder / name) for name in ("profile.json", "refined.json"))
    assert set(refined.fitted) >= set(base.fitted)
    figures = sorted(folder.glob("*.png"))
    assert {"predicted_measured.png", "timelines_pipeline.png"} <= {figure.name for figure in figures}
    for figure in figures:
        content = figure.read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 10_000


@pytest.mark.long
def test_people_see_a_table(demo: tuple[Ended, Path]) -> None:
    ended, _ = demo
    (document,) = ended.documents
    lines = [message.split() for message in ended.messages]
    for plan in document["plans"]:
        assert any(line[:1] == [plan["name"]] and "ms" in line for line in lines)
    assert ended.stderr.count("<- chosen before any run") == 1


@pytest.mark.parametrize("arguments", long_but([(("--ranks", 1),), (("--steps", 2),), (("--blocks", 2),)], 1))
def test_too_small_a_comparison_is_refused(tmp_path: Path, arguments: tuple[str, int]) -> None:
    ended = run(tmp_path, "demo", *arguments, "--json")
    assert (ended.code, ended.stdout, len(ended.messages)) == (2, "", 1)
    assert "too small for a comparison" in ended.stderr


@pytest.mark.long
def test_an_interrupted_demo_is_gone(tmp_path: Path) -> None:
    job = Job(tmp_path, "demo", "--json")
    deadline_s = time.monotonic() + 60
    while not any(name == "sbplan-rank" for _, name in job.processes()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    job.signal(signal.SIGINT)
    ended = job.wait()
    assert (ended.code, ended.stdout) == (130, "")
    assert ended.seconds < 10
    assert "Traceback" not in ended.stderr
