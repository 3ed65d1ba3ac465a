"""The run store: rows and folders, two writers, damage."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.store.store import RunRecord, RunStatus, RunStore
from strategy.base.errors import InputError, RunError
from strategy.base.files import held

ROOT = Path(__file__).parents[3]
MANY_RUNS = """
import sys
from pathlib import Path
from experiments.store.store import RunStatus, RunStore
store = RunStore(Path(sys.argv[1]), wait_s=60)
for number in range(10):
    run = store.create("demo", {"writer": sys.argv[2], "number": number})
    store.finish(run, RunStatus.DONE, {"number": number})
"""


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    run = store.create("search", {"model": "gpt-tiny", "cluster": "local"})
    assert run.folder == tmp_path / "runs" / "0001-search"
    assert json.loads((run.folder / "inputs.json").read_text()) == {"model": "gpt-tiny", "cluster": "local"}
    assert store.get(1) == run
    assert (run.status, run.finished) == (RunStatus.RUNNING, None)

    closed = store.finish(run, RunStatus.DONE, {"plan_hash": "abc", "step_time_s": 0.25})
    assert store.get(1) == closed
    assert (closed.status, closed.plan_hash, closed.summary["step_time_s"]) == (RunStatus.DONE, "abc", 0.25)
    assert closed.finished is not None
    assert closed.finished >= closed.started


def test_runs_are_listed_oldest_first(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    runs = tuple(store.create(verb, {}) for verb in ("demo", "train", "search"))
    assert store.list() == runs
    assert [run.folder.name for run in runs] == ["0001-demo", "0002-train", "0003-search"]


def test_a_store_may_be_moved(tmp_path: Path) -> None:
    RunStore(tmp_path / "here").create("demo", {})
    (tmp_path / "here").rename(tmp_path / "there")
    assert RunStore(tmp_path / "there").get(1).folder.is_dir()


def test_what_is_not_there(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with pytest.raises(InputError, match="no runs here"):
        store.list()
    store.create("demo", {})
    with pytest.raises(InputError, match=r"no such run \(got 7\)"):
        store.get(7)


def test_a_run_that_cannot_be_opened_leaves_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    first = store.create("demo", {})

    def refuse(_path: Path, _data: str) -> None:
        raise RunError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("experiments.store.store.write_atomic", refuse)
        with pytest.raises(RunError, match="disk full"):
            store.create("demo", {})
    assert store.list() == (first,)
    assert store.create("demo", {}).folder.name == "0002-demo"


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite").write_bytes(b"not a database at all" * 100)
    for job in (RunStore(tmp_path).list, lambda: RunStore(tmp_path).create("demo", {})):
        with pytest.raises(InputError, match="not a run store"):
            job()


def test_a_store_that_is_just_being_made_has_no_runs(tmp_path: Path) -> None:
    """Its file is there before its table: whoever reads in between finds nothing, and the writer goes on."""
    store = RunStore(tmp_path)
    (tmp_path / "runs.sqlite").touch()
    assert store.list() == ()
    with pytest.raises(InputError, match="no such run"):
        store.get(1)
    run = store.create("train", {})
    assert store.list() == (run,)


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    RunStore(tmp_path).create("demo", {})
    database = sqlite3.connect(tmp_path / "runs.sqlite")
    database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(InputError, match=r"another version \(got 9, expected 1\)"):
        RunStore(tmp_path).list()


def test_the_second_writer_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(InputError, match=f"pid {os.getpid()}"):
        RunStore(tmp_path, wait_s=0.1).create("demo", {})


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="Not a directory"):
        RunStore(tmp_path / "file" / "runs").create("demo", {})


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", MANY_RUNS, str(tmp_path), name], cwd=ROOT) for name in ("one", "two")
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    runs = RunStore(tmp_path).list()
    assert [run.id for run in runs] == list(range(1, 21))
    assert {run.status for run in runs} == {RunStatus.DONE}
    written = [json.loads((run.folder / "inputs.json").read_text()) for run in runs]
    assert sorted((inputs["writer"], inputs["number"]) for inputs in written) == [
        (name, number) for name in ("one", "two") for number in range(10)
    ]


def test_a_run_is_a_value(tmp_path: Path) -> None:
    run = RunRecord(id=1, verb="demo", started="2026-01-01T00:00:00+00:00", folder=tmp_path)
    with pytest.raises(AttributeError):
        run.id = 2  # type: ignore[misc]
