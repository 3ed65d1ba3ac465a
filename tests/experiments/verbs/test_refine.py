"""`sbplan refine`: a run whose true constants are known, and runs that are damaged."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.jobs.step_time import write_step_time
from simulator.simulate import simulate
from strategy.cost.calibrate import calibrate, read_calibration, write_calibration, write_measurements
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey, Features, Measurement
from strategy.lowering.lower import lower
from strategy.plan.observe import features_by_action, observe
from strategy.plan.plan import read_plan
from strategy.program.timeline import write_timeline
from tests.experiments.conftest import Command
from tests.experiments.verbs.test_verify import forge

SLOWNESS = 3.0
RARE = CostKey("rare")


@pytest.fixture
def run_folder(tmp_path: Path, plan_file: Path) -> Path:
    """A run on a machine that takes three times as long for everything as its data sheet says."""
    plan = read_plan(plan_file)
    slow = replace(plan.cluster.device, launch_s=plan.cluster.device.launch_s * SLOWNESS)
    slow = replace(slow, flop_per_s=slow.flop_per_s / SLOWNESS, memory_bytes_per_s=slow.memory_bytes_per_s / SLOWNESS)
    link = replace(plan.cluster.intra, bytes_per_s=plan.cluster.intra.bytes_per_s / SLOWNESS)
    truth = replace(plan.cost, cluster=replace(plan.cluster, device=slow, intra=link))
    program = lower(plan.graph, plan.layout, plan.pipeline, truth)
    timeline = simulate(program, steps=4).timeline
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(plan_file, folder / "plan.json")
    write_measurements(
        observe(timeline, program, features_by_action(plan), plan.cost, source="run", steps={1}),
        folder / "measurements.json",
    )
    write_timeline(timeline, folder / "timeline.json.gz")
    return folder


@pytest.fixture
def old(tmp_path: Path, plan_file: Path) -> Path:
    """A calibration that knows a matmul of the data sheet, and a kind that no run has."""
    path = tmp_path / "old.json"
    rows = [Measurement(Features("matmul", flop, 0), flop / 50e9, 5, "sheet") for flop in (10**6, 10**8)]
    rows += [Measurement(Features("rare", 0, nbytes), nbytes / 1e9, 5, "sheet") for nbytes in (10**4, 10**6)]
    write_calibration(calibrate(rows, read_plan(plan_file).cluster), path)
    return path


def test_the_new_constants_explain_the_run(command: Command, tmp_path: Path, run_folder: Path, old: Path) -> None:
    out = tmp_path / "new.json"
    said = command("refine", run_folder, "--calibration", old, "--out", out, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert found["calibration"] == str(out)
    (only,) = found["runs"]
    assert only["error_before"] == pytest.approx(1 / SLOWNESS - 1, abs=0.05)
    assert abs(only["error_after"]) < 0.02
    assert f"{run_folder}: " in said.err
    calibration = read_calibration(out)
    assert calibration.fitted[RARE].points == read_calibration(old).fitted[RARE].points
    assert calibration.fitted[CostKey("matmul")].sources == ("run", "sheet")
    assert calibration.cluster == "two-cores"


@pytest.mark.long
def test_the_same_runs_give_the_same_bytes(command: Command, tmp_path: Path, run_folder: Path, old: Path) -> None:
    outs = [tmp_path / "one.json", tmp_path / "two.json"]
    for out in outs:
        assert command("refine", run_folder, "--calibration", old, "--out", out).code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_the_constants_are_good_for_a_search(
    command: Command, tmp_path: Path, run_folder: Path, old: Path, plan_file: Path
) -> None:
    out = tmp_path / "new.json"
    assert command("refine", run_folder, "--calibration", old, "--out", out).code == 0
    cost = read_calibration(out).cost_model(read_plan(plan_file).cluster)
    assert isinstance(cost.coefficients[RARE], Coefficients)
    assert json.loads(command("simulate", plan_file, "--calibration", out, "--json").out)["extrapolated"] == []


@pytest.mark.parametrize("name", ["plan.json", "measurements.json", "timeline.json.gz"])
def test_a_damaged_run_is_named(command: Command, tmp_path: Path, run_folder: Path, old: Path, name: str) -> None:
    path = run_folder / name
    content = path.read_bytes()
    for damaged in (None, b"", content[: len(content) // 2], b"{}"):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        said = command("refine", run_folder, "--calibration", old, "--out", tmp_path / "new.json", "--json")
        assert (said.code, said.out) == (2, "")
        assert str(path) in said.err
        assert not (tmp_path / "new.json").exists()


def test_a_run_that_measured_nothing(command: Command, tmp_path: Path, run_folder: Path, old: Path) -> None:
    (run_folder / "measurements.json").write_text("[]")
    said = command("refine", run_folder, "--calibration", old, "--out", tmp_path / "new.json")
    assert said.code == 2
    assert "measurements.json: nothing was measured" in said.err


def test_a_run_of_one_step(command: Command, tmp_path: Path, run_folder: Path, old: Path) -> None:
    plan = read_plan(run_folder / "plan.json")
    program = lower(plan.graph, plan.layout, plan.pipeline, plan.cost)
    write_timeline(simulate(program, steps=1).timeline, run_folder / "timeline.json.gz")
    said = command("refine", run_folder, "--calibration", old, "--out", tmp_path / "new.json")
    assert said.code == 2
    assert "too few steps" in said.err


def test_no_such_run(command: Command, tmp_path: Path, old: Path) -> None:
    said = command("refine", tmp_path / "nowhere", "--calibration", old, "--out", tmp_path / "new.json")
    assert said.code == 2
    assert "nowhere: no such run" in said.err


def test_a_timeline_that_unpacks_to_a_huge_one(
    command: Command, tmp_path: Path, run_folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strategy.base.files.MAX_JSON_BYTES", 2**22)
    (run_folder / "timeline.json.gz").write_bytes(gzip.compress(bytes(2**23)))
    said = command("refine", run_folder, "--calibration", old, "--out", tmp_path / "new.json")
    assert said.code == 2
    assert "timeline.json.gz: too large" in said.err


def test_a_run_of_a_forged_plan(command: Command, tmp_path: Path, run_folder: Path, old: Path, plan_file: Path) -> None:
    forge(plan_file, run_folder / "plan.json", lambda content: next(iter(content["ops"].values())).update(stage=7))
    said = command("refine", run_folder, "--calibration", old, "--out", tmp_path / "new.json")
    assert said.code == 2
    assert "plan.json: refused: op " in said.err


@pytest.mark.long
def test_without_a_calibration_runs_correct_the_data_sheet(
    command: Command, run_folder: Path, plan_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new.json"
    said = command("refine", run_folder, "--out", out, "--json")
    assert said.code == 0, said.err
    (found,) = json.loads(said.out)["runs"]
    assert found["error_before"] == pytest.approx(1 / SLOWNESS - 1, abs=0.03)
    assert abs(found["error_after"]) < 0.01
    assert json.loads(command("simulate", plan_file, "--calibration", out, "--json").out)["extrapolated"] == []


def test_steps_that_nobody_recorded_say_what_a_step_takes(command: Command, run_folder: Path, tmp_path: Path) -> None:
    before = json.loads(command("refine", run_folder, "--out", tmp_path / "a.json", "--json").out)["runs"][0]
    write_step_time(run_folder, 0.9 * before["measured_step_time_s"])
    said = command("refine", run_folder, "--out", tmp_path / "b.json", "--json")
    (after,) = json.loads(said.out)["runs"]
    assert after["measured_step_time_s"] == pytest.approx(0.9 * before["measured_step_time_s"])
    assert abs(after["error_after"]) < 0.01
    (run_folder / "step_time.json").write_text('{"step_time_s": -1}')
    said = command("refine", run_folder, "--out", tmp_path / "c.json")
    assert said.code == 2
    assert "not the time of a step" in said.err


def torchtitan_log(path: Path, step_s: float, *, tokens: int) -> Path:
    """As torchtitan prints it, of a data-parallel rank with so many tokens a step."""
    lines = ["Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=2, cp=1, tp=1, ep=1"]
    batch = f"local batch size {tokens // 16}, global batch size 4"
    lines.append(f"{batch}, gradient accumulation steps 1, sequence length 16")
    lines += [f"step: {n:2}  loss: 1.0  memory: 1GiB  tps: {tokens / step_s:,.6f}  tflops: 1" for n in range(1, 5)]
    path.write_text("\n".join(lines))
    return path


def test_logs_correct_a_cluster_that_is_three_times_off(command: Command, tmp_path: Path, plan_file: Path) -> None:
    """One log is three times as slow as the data sheet says, the other 3.1 times; each is held out once."""
    sheet_s = read_plan(plan_file).claims.step_time_s
    logs = [torchtitan_log(tmp_path / f"{f}.log", f * sheet_s, tokens=32) for f in (3.0, 3.1)]
    out = tmp_path / "new.json"
    flags = [word for log in logs for word in ("--log", plan_file, log)]
    said = command("refine", *flags, "--out", out, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)["logs"]
    assert [one["error_before"] for one in found] == pytest.approx([1 / 3 - 1, 1 / 3.1 - 1], abs=0.03)
    assert [one["error_after"] for one in found] == pytest.approx([0.05 / 3, -0.05 / 3.1], abs=0.005)
    assert [one["error_held_out"] for one in found] == pytest.approx([0.1 / 3, -0.1 / 3.1], abs=0.005)
    priced = json.loads(command("simulate", plan_file, "--calibration", out, "--json").out)
    assert priced["step_time_s"] == pytest.approx(3.05 * sheet_s, rel=0.01)


def test_measured_collectives_are_kept_and_all_else_is_scaled(
    command: Command, tmp_path: Path, plan_file: Path
) -> None:
    plan = read_plan(plan_file)
    log = torchtitan_log(tmp_path / "a.log", 3 * plan.claims.step_time_s, tokens=32)
    rows = "\n".join(f"{nbytes} {10 + nbytes / 1e3:.3f} 1 1" for nbytes in (2**k for k in range(10, 24)))
    (tmp_path / "nccl.txt").write_text(rows)
    out = tmp_path / "new.json"
    said = command("refine", "--log", plan_file, log, "--collectives", 2, tmp_path / "nccl.txt", "--out", out, "--json")
    assert said.code == 0, said.err
    (one,) = json.loads(said.out)["logs"]
    assert abs(one["error_after"]) < 0.01
    assert one["error_held_out"] is None
    fitted = read_calibration(out).fitted[CostKey("all_reduce", level="intra")].coefficients
    assert fitted.s_per_byte == pytest.approx(1e-9, rel=0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to refine by"),
        (("--log", "PLAN", "nowhere.log"), "cannot be read"),
        (("folder", "--collectives", "2", "x", "--calibration", "c"), "of which cluster"),
    ],
)
def test_what_cannot_be_refined_by_is_said(
    command: Command, tmp_path: Path, plan_file: Path, words: tuple[str, ...], said: str
) -> None:
    found = command("refine", *(str(plan_file) if word == "PLAN" else word for word in words), "--out", tmp_path / "n")
    assert found.code == 2
    assert said in found.err
