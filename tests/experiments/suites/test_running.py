"""Running a suite: results in the store, what is done is not done again, and ranks that share the experiments out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.supervision.environment import find_mpiexec
from experiments.store.results import read_results
from experiments.store.store import RunStatus, RunStore
from tests.experiments.conftest import Command

ROOT = Path(__file__).parents[3]
QUICK = """
name = "small"

[[experiments]]
kind = "pipeline"
name = "{schedule}"
stages = 4
micro_batches = 8
[experiments.over]
schedule = ["1f1b", "zb-h1"]

[[experiments]]
kind = "exchange"
name = "two nodes"
model = "resnet18"
batch = 32
nodes = 2
"""
SUITE = (
    QUICK
    + """
[[experiments]]
kind = "search"
name = "a search"
model = "gpt-tiny"
sequence = 16
cluster = "dgx-a100:1"
global_batch = 16
pins = {dp = 8, tp = 1, pp = 1, micro_batch = 2, num_micro_batches = 1}
"""
)
NAMES = ["1f1b", "zb-h1", "two nodes", "a search"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    return path


def started(suite: Path, store: Path, *launcher: object) -> subprocess.Popen[str]:
    command = [*map(str, launcher), sys.executable, "-P", "-m", "experiments", "run", suite, "--out", store, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=suite.parent, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_a_suite_runs_once(command: Command, suite: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    said = command("run", suite, "--out", store, "--json")
    assert said.code == 0, said.err
    first = json.loads(said.out)
    assert (first["done"], first["earlier"], first["failed"], first["left"]) == (NAMES, [], [], [])
    found = {one.name: one.summary for one in read_results(RunStore(store))}
    assert found["1f1b"]["idle_share"] == pytest.approx(3 / 11)
    assert found["zb-h1"]["idle_share"] < found["1f1b"]["idle_share"]
    systems = found["two nodes"]["systems"]
    assert all(one["step_time_s"] >= 0.99 * found["two nodes"]["alone_s"] for one in systems.values())
    assert found["a search"]["config"]["dp"] == found["a search"]["gpus"] == 8
    (searched,) = (one for one in read_results(RunStore(store)) if one.name == "a search")
    assert (searched.folder / "plan.json").is_file()
    again = json.loads(command("run", suite, "--out", store, "--json").out)
    assert (again["done"], again["earlier"]) == ([], NAMES)
    assert len(RunStore(store).list()) == len(NAMES)


def test_what_changes_is_done_anew(command: Command, suite: Path, tmp_path: Path) -> None:
    suite.write_text(QUICK)
    command("run", suite, "--out", tmp_path / "runs")
    suite.write_text(QUICK.replace("nodes = 2", "nodes = 3"))
    again = json.loads(command("run", suite, "--out", tmp_path / "runs", "--json").out)
    assert again["done"] == ["two nodes"]


def test_a_failure_is_told_and_the_rest_is_done(command: Command, suite: Path, tmp_path: Path) -> None:
    suite.write_text(QUICK.replace("resnet18", "resnet19"))
    said = command("run", suite, "--out", tmp_path / "runs")
    assert said.code == 6
    assert "failed: two nodes" in said.err
    runs = RunStore(tmp_path / "runs").list()
    assert [run.status for run in runs].count(RunStatus.DONE) == 2
    assert [run.status for run in runs].count(RunStatus.FAILED) == 1


@pytest.mark.long
def test_a_suite_that_was_killed_goes_on(suite: Path, tmp_path: Path) -> None:
    """Killed as soon as one experiment is done: what is done stays done, and nothing is done twice."""
    store = RunStore(tmp_path / "runs")
    process = started(suite, store.root)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (store.root / "runs.sqlite").exists() and any(run.status is RunStatus.DONE for run in store.list()):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {one.name: one.run for one in read_results(store)}
    assert 0 < len(before) < len(NAMES), "killed in the middle"
    again = started(suite, store.root)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    found = json.loads(out)
    assert sorted(found["earlier"]) == sorted(before)
    assert sorted(found["done"]) == sorted(set(NAMES) - set(before))
    after = read_results(store)
    assert sorted(one.name for one in after) == sorted(NAMES)
    assert {one.name: one.run for one in after}.items() >= before.items()


@pytest.mark.mpi
@pytest.mark.long
def test_ranks_share_the_experiments_out(suite: Path, tmp_path: Path) -> None:
    suite.write_text(SUITE + '\n[[experiments]]\nkind = "loop"\nname = "trains"\n')
    process = started(suite, tmp_path / "runs", find_mpiexec(), "-n", 3)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    found = json.loads(out)
    assert sorted(found["done"]) == sorted(NAMES)
    assert found["left"] == ["trains"]
    assert "without mpiexec" in err
