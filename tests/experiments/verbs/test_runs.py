"""The verb `runs`: what is in a store, and what becomes of it."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path

import pytest

from experiments.store.store import RunStatus, RunStore
from tests.experiments.conftest import Command


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Three runs; the third was killed."""
    found = RunStore(tmp_path / "runs")
    for step_s, note in ((0.25, "=cmd()"), (0.5, "plain")):
        run = found.create("train", {"plan": "plan.json", "note": note, "pins": {"tp": 2}})
        found.finish(run, RunStatus.DONE, {"step_time_s": step_s, "plan_hash": "abc"})
    found.create("demo", {"ranks": 2})
    return found


def damage(store: RunStore, assignment: str) -> None:
    with sqlite3.connect(store.root / "runs.sqlite") as database:
        database.execute(f"UPDATE runs SET {assignment} WHERE id = 1")


def test_runs_are_listed(command: Command, store: RunStore) -> None:
    said = command("runs", "--store", store.root)
    lines = said.out.splitlines()
    assert said.code == 0
    assert lines[0].split() == ["id", "verb", "status", "started", "seconds", "folder"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["1", "train", "done"],
        ["2", "train", "done"],
        ["3", "demo", "running"],
    ]
    listed = json.loads(command("runs", "list", "--store", store.root, "--json").out)["runs"]
    assert [run["id"] for run in listed] == [1, 2, 3]


def test_a_run_is_shown_whole(command: Command, store: RunStore) -> None:
    shown = command("runs", "show", "1", "--store", store.root)
    assert "inputs.pins.tp: 2\n" in shown.out
    assert "summary.step_time_s: 0.25\n" in shown.out
    assert command("runs", "show", "7", "--store", store.root).code == 2


def test_what_differs_is_compared(command: Command, store: RunStore) -> None:
    compared = json.loads(command("runs", "compare", "1", "2", "--store", store.root, "--json").out)
    assert compared["runs"] == [1, 2]
    assert compared["differences"]["summary.step_time_s"] == ["0.25", "0.5"]
    assert "inputs.plan" not in compared["differences"]
    assert "summary.step_time_s" in command("runs", "compare", "1", "2", "--store", store.root).out
    assert "2 or more" in command("runs", "compare", "1", "--store", store.root).err


def test_an_export_holds_all_and_no_formula(command: Command, store: RunStore, tmp_path: Path) -> None:
    for suffix in (".csv", ".json"):
        assert command("runs", "export", "--out", tmp_path / f"all{suffix}", "--store", store.root).code == 0
    rows = list(csv.DictReader((tmp_path / "all.csv").open(newline="")))
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert [row["inputs.note"] for row in rows] == ["'=cmd()", "plain", ""]
    assert rows[1]["summary.step_time_s"] == "0.5"
    documents = json.loads((tmp_path / "all.json").read_text())
    assert documents[0]["inputs"]["note"] == "=cmd()"
    assert "no such format" in command("runs", "export", "--out", tmp_path / "all.xls", "--store", store.root).err


@pytest.mark.parametrize(
    "damaged", ["summary = '{'", "status = 'gone'", "folder = '../../elsewhere'", "summary = x'00'", "summary = '[]'"]
)
def test_damaged_rows_are_one_message(command: Command, store: RunStore, damaged: str) -> None:
    damage(store, damaged)
    said = command("runs", "--store", store.root)
    assert said.code == 0
    assert said.err.count("\n") == 1
    assert "damaged rows: 1; 'sbplan runs delete 1' removes them" in said.err
    assert "damaged" in command("runs", "show", "1", "--store", store.root).err
    assert command("runs", "delete", "1", "--store", store.root).code == 0
    assert [run.id for run in store.list()] == [2, 3]


def test_a_row_deletes_nothing_outside_of_its_store(command: Command, store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    damage(store, "folder = '../elsewhere'")
    assert command("runs", "delete", "1", "--store", store.root).code == 0
    assert (tmp_path / "elsewhere").is_dir()


def test_deleted_runs_are_gone_with_their_folders(command: Command, store: RunStore) -> None:
    folders = [run.folder for run in store.list()]
    refused = command("runs", "delete", "1", "3", "--store", store.root)
    assert refused.code == 2
    assert "--unfinished" in refused.err
    assert command("runs", "delete", "1", "3", "--unfinished", "--store", store.root).code == 0
    assert [run.id for run in store.list()] == [2]
    assert [folder.exists() for folder in folders] == [False, True, False]


def test_a_folder_of_two_runs_is_kept_for_the_other(command: Command, store: RunStore) -> None:
    for _ in range(2):
        store.finish(store.create("train", {}, name="again"), RunStatus.DONE, {})
    assert command("runs", "delete", "4", "--store", store.root).code == 0
    assert store.get(5).folder.is_dir()


def test_flags_of_other_actions_are_refused(command: Command, store: RunStore, tmp_path: Path) -> None:
    assert "is of 'export'" in command("runs", "list", "--out", tmp_path / "x.csv", "--store", store.root).err
    assert "no runs here" in command("runs", "--store", tmp_path / "nowhere").err
