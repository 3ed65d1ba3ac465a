"""`sbplan simulate`: the figures, the trace, the picture, and what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from strategy.cost.calibrate import calibrate, write_calibration
from strategy.cost.measurement import Measurement
from strategy.plan.observe import features_by_action
from strategy.plan.plan import read_plan
from tests.experiments.conftest import Command
from tests.experiments.verbs.test_verify import claim_less_memory, forge

KEYS = [
    "step_time_s",
    "bubble_overhead",
    "idle_share",
    "exposed_communication_s",
    "peak_memory_bytes",
    "tokens_per_s",
    "mfu",
    "hfu",
    "num_tasks",
    "simulate_time_s",
]


def test_it_repeats_what_the_plan_says(command: Command, plan_file: Path) -> None:
    said = command("simulate", plan_file, "--json")
    found = json.loads(said.out)
    plan = read_plan(plan_file)
    assert said.code == 0
    assert set(KEYS) <= found.keys()
    assert found["step_time_s"] == plan.claims.step_time_s
    assert found["tokens_per_s"] == pytest.approx(64 / plan.claims.step_time_s)
    assert len(found["peak_memory_bytes"]) == 2
    assert max(found["peak_memory_bytes"]) <= max(plan.claims.peak_memory_bytes)
    assert 0 < found["mfu"] == found["hfu"] < 1
    assert found["idle_share"] == pytest.approx(found["bubble_overhead"] / (1 + found["bubble_overhead"]))
    assert found["num_tasks"] > len(plan.graph.ops)


def test_the_trace_and_the_figures(command: Command, tmp_path: Path, plan_file: Path) -> None:
    traces = [tmp_path / "one.json.gz", tmp_path / "two.json.gz"]
    figure = tmp_path / "timeline.png"
    assert command("simulate", plan_file, "--trace", traces[0], "--figure", figure).code == 0
    assert command("simulate", plan_file, "--trace", traces[1]).code == 0
    assert traces[0].read_bytes() == traces[1].read_bytes()
    events = json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["timeline-memory.png", "timeline.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


PIPELINED = """
[config]
dp = 32
tp = 1
pp = 2
micro_batch = 1
schedule = "1f1b"
recompute = "full"
"""


@pytest.mark.long
def test_the_trace_of_a_step_is_the_step(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 GPUs, two ranks stand for their stages: each act is an event, and the last one ends with the step."""
    monkeypatch.setattr("simulator.simulate.MOST_ACTS", 1000)
    pins, plan, trace = tmp_path / "pins.toml", tmp_path / "plan.json", tmp_path / "trace.json.gz"
    pins.write_text(PIPELINED)
    size = ("--global-batch", 256, "--pin", pins, "--time-limit", 60)
    assert command("search", "gpt-tiny", "--cluster", "dgx-a100:8", *size, "--out", plan).code in (0, 4)
    said = command("simulate", plan, "--trace", trace, "--json")
    found = json.loads(said.out)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    acts = [event for event in events if event["ph"] == "X"]
    assert len({event["pid"] for event in acts}) == 2
    assert len(acts) == found["num_tasks"] > 1000
    assert round(max(event["ts"] + event["dur"] for event in acts) * 1000) == round(found["step_time_s"] * 1e9)
    assert len(found["peak_memory_bytes"]) == 64


def test_a_calibration_changes_the_prices(command: Command, tmp_path: Path, plan_file: Path) -> None:
    """Every act takes twice as long under it, so a step does."""
    plan = read_plan(plan_file)
    features = sorted(set(features_by_action(plan).values()), key=str)
    rows = [Measurement(found, 2 * plan.cost.seconds(found), 9, "slow") for found in features]
    path = tmp_path / "calibration.json"
    write_calibration(calibrate(rows, plan.cluster), path)
    said = command("simulate", plan_file, "--calibration", path, "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert found["step_time_s"] == pytest.approx(2 * plan.claims.step_time_s, rel=0.02)
    assert found["extrapolated"] == []


def test_a_feed_costs_nothing_until_it_is_the_slowest(command: Command, plan_file: Path) -> None:
    """Ids and labels are read side by side; both halves go on beside the step, and beside each other."""
    plan = read_plan(plan_file)

    def step_s(*flags: object) -> float:
        said = command("simulate", plan_file, "--json", *flags)
        found = json.loads(said.out)["step_time_s"]
        assert isinstance(found, float)
        return found

    alone_s, acts = step_s(), plan.training.num_micro_batches
    hidden = f"{0.35 * alone_s / acts * 1e6:.0f}us"
    assert step_s("--read", hidden, "--decode", hidden) == pytest.approx(alone_s)
    assert step_s("--read", "1s", "--decode", "0.5s") == pytest.approx(acts * 1.0)
    assert step_s("--read", "0.5s", "--decode", "2s") == pytest.approx(acts * 2.0)
    said = command("simulate", plan_file, "--read", "4")
    assert (said.code, "--read" in said.err) == (2, True)


def test_failures_leave_less_the_more_often_they_come(command: Command, plan_file: Path) -> None:
    found = []
    for mtbf in ("100000h", "1000h", "10 h"):
        said = command("simulate", plan_file, "--mtbf", mtbf, "--save", "20 s", "--json")
        assert said.code == 0, said.err
        assert "of the time is kept" in said.err
        document = json.loads(said.out)
        assert document["checkpoint_interval_s"] > document["stall_s"] == 20
        found.append(document["goodput"])
    assert 1 > found[0] > found[1] > found[2] > 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mtbf", "1000"], "--mtbf: not a figure with a unit"),
        (["--mtbf", "0 h", "--save", "1 s"], "failures: mtbf_s: not a duration"),
        (["--mtbf", "1 h", "--save", "-1 s"], "--save: not a possible figure"),
        (["--mtbf", "1 h", "--save", "1 s", "--restart", "soon"], "--restart: not a figure with a unit"),
        (["--mtbf", "1 h"], "nothing says how long a save takes"),
    ],
)
def test_failures_that_cannot_be_are_refused(command: Command, plan_file: Path, argv: list[str], message: str) -> None:
    said = command("simulate", plan_file, *argv)
    assert said.code == 2
    assert message in said.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--calibration", "nowhere.json"], "nowhere.json: no such file"),
        (["--trace", "nowhere/trace.json"], "--trace nowhere/trace.json: no such folder"),
        (["--figure", "nowhere/figure.png"], "--figure nowhere/figure.png: no such folder"),
        (["--figure", "figure.txt"], "--figure figure.txt: no such format of pictures"),
    ],
)
def test_wrong_arguments(command: Command, plan_file: Path, argv: list[str], message: str) -> None:
    said = command("simulate", plan_file, *argv)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_a_plan_is_given_as_calibration(command: Command, plan_file: Path) -> None:
    said = command("simulate", plan_file, "--calibration", plan_file)
    assert said.code == 2
    assert str(plan_file) in said.err


def test_a_plan_that_does_not_verify(command: Command, tmp_path: Path, plan_file: Path) -> None:
    path = forge(plan_file, tmp_path / "plan.json", claim_less_memory)
    said = command("simulate", path, "--json")
    assert (said.code, said.out) == (2, "")
    assert "refused: peak_memory_bytes of rank 1" in said.err
