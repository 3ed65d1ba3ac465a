"""Figures: drawn by command from computed data, the same bytes every time."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from experiments.figures import bubbles, held_out, scaling, schedules
from experiments.figures.held_out import HeldOutPoint
from experiments.store.results import read_results
from experiments.store.store import RunRecord, RunStatus, RunStore
from experiments.suites.experiment import (
    ExchangeExperiment,
    Experiment,
    FrameworkExperiment,
    MegatronExperiment,
    PipelineExperiment,
)
from experiments.suites.outcomes import outcome
from experiments.suites.suite import SuiteExperiment
from experiments.verbs.figures import STORED, latest
from tests.experiments.conftest import Command


@pytest.mark.long
def test_the_command_draws_the_same_bytes_twice(command: Command, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        said = command("figures", "--out", tmp_path / name, "--json")
        assert said.code == 0
        assert "schedules.png" in said.err
        paths = [Path(path) for path in json.loads(said.out)["figures"]]
        assert [path.name for path in paths] == [
            f"{name}{suffix}" for name in ("schedules", "scaling") for suffix in (".png", ".pdf", ".csv")
        ]
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    for png, pdf, _ in (found[0][:3], found[0][3:]):
        assert png.startswith(b"\x89PNG")
        assert pdf.startswith(b"%PDF")


def test_a_place_that_is_no_folder_is_bad_input(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = command("figures", "--out", tmp_path / "file")
    assert said.code == 2
    assert "not a folder" in said.err


def test_schedules_idle_as_their_papers_say() -> None:
    """p = 4, m = 8; interleaving by 2 halves the bubble; without waiting for weights it is a third (ZB-H1)."""
    panels = {panel.name: panel for panel in schedules.data()}
    idle = {name: Fraction(panel.idle_share).limit_denominator(1000) for name, panel in panels.items()}
    assert idle["gpipe"] == idle["1f1b"] == Fraction(3, 11)
    assert idle["interleaved"] == Fraction(3, 19)
    assert idle["zb-h1"] == Fraction(1, 9)
    for panel in panels.values():
        assert {bar.rank for bar in panel.bars} == set(range(schedules.STAGES))


def test_scaling_falls_with_the_batch_that_each_gpu_has_left() -> None:
    curves = {curve.name: curve for curve in scaling.data()}
    assert len(curves) == len(scaling.WAYS)
    for curve in curves.values():
        assert all(low < mid < high for low, mid, high in zip(curve.low, curve.tflop_per_s, curve.high, strict=True))
        assert list(curve.tflop_per_s) == sorted(curve.tflop_per_s, reverse=True)
    plain, interleaved = (curves[way.name].tflop_per_s[-1] for way in scaling.WAYS[:2])
    assert interleaved > plain


POINTS = [HeldOutPoint(1, "one", 1.0, 1.1, 0.9, 1.3), HeldOutPoint(1, "two", 20.0, 18.0, 15.0, 22.0)]


@pytest.mark.parametrize("points", [POINTS])
def test_held_out_runs_are_drawn_by_series(points: list[HeldOutPoint]) -> None:
    upper, lower = held_out.figure(points).axes
    assert len(upper.collections) == len(lower.collections) == 1 + len(points)


GIB = 2**30
SEARCHED: dict[str, Any] = {"status": "feasible", "tokens_per_s": 1e6, "mfu": 0.4, "gap": 0.01}
SEARCHED |= {"step_time_s": 2.0, "idle_share": 0.2, "exposed_communication_s": 0.2}
METHOD = {"step_s": 1.1, "time_s": 2.0, "what": "dp 8", "gap": None, "note": ""}


def kept(store: RunStore, suite: str, experiment: Mapping[str, Any], summary: Mapping[str, Any]) -> RunRecord:
    run = store.create("run", {"suite": suite, "experiment": experiment})
    return store.finish(run, RunStatus.DONE, summary)


def done(store: RunStore, suite: str, experiments: Sequence[Experiment]) -> None:
    for one in experiments:
        inputs = SuiteExperiment(suite, one).inputs["experiment"]
        assert isinstance(inputs, dict)
        kept(store, suite, inputs, outcome(one, store.root))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Runs of every suite but that of the executor; what takes long is made up, in the form in which it is kept."""
    found = RunStore(tmp_path_factory.mktemp("store") / "runs")
    done(found, "schedules", [PipelineExperiment(f"{s} {m}", s, 4, m) for s in ("1f1b", "zbv") for m in (8, 16)])
    done(found, "exchange", [ExchangeExperiment(f"{n}", "resnet18", 32, n) for n in (1, 2)])
    done(found, "frameworks", [FrameworkExperiment("GPT")])
    done(found, "sc21", [MegatronExperiment("1.7 B", "1.7 B")])
    for stage in (0, 3):
        pins = {"zero_stage": stage, "recompute": "none"}
        experiment = {"kind": "search", "name": f"{stage}", "model": "m", "cluster": "c", "pins": pins}
        summary = {"memory_limit_bytes": 80 * GIB, "peak_memory_bytes": (60 - stage) * GIB, "step_time_s": 1.0 + stage}
        kept(found, "memory", experiment, summary)
    unfit = experiment | {"name": "none fits", "pins": pins | {"zero_stage": 1}}
    kept(found, "memory", unfit, {"memory_limit_bytes": 80 * GIB})
    for gpus in (512, 1024):
        experiment = {"kind": "search", "name": f"{gpus}", "series": "same batch", "model": "m", "global_batch": 8}
        kept(found, "scaling", experiment, SEARCHED | {"gpus": gpus})
    results = {"ours": METHOD | {"step_s": 1.0}, "alpa-like": METHOD, "mist-like": METHOD | {"step_s": None}}
    kept(found, "search", {"kind": "baselines", "name": "a on b"}, {"bound_s": 0.9, "results": results})
    points = [{key: value for key, value in asdict(point).items() if key != "run"} for point in POINTS]
    kept(found, "published", {"kind": "published", "name": "held out"}, {"points": points})
    return found


@pytest.mark.long
def test_every_figure_is_drawn_from_the_store_with_the_ids_of_its_runs(
    command: Command, store: RunStore, tmp_path: Path
) -> None:
    said = command("figures", "--all", "--store", store.root, "--out", tmp_path / "figures", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["without_runs"] == ["predicted_measured", "timelines"]
    assert "'sbplan run executor.toml" in said.err
    for name, suite in STORED.items():
        if suite == "executor":
            continue
        for suffix in (".png", ".pdf"):
            assert (tmp_path / "figures" / f"{name}{suffix}").stat().st_size > 2000
        rows = list(csv.DictReader((tmp_path / "figures" / f"{name}.csv").open(newline="")))
        assert rows, name
        assert {int(row["run"]) for row in rows} <= {one.run for one in read_results(store) if one.suite == suite}


def test_of_an_experiment_the_newest_run_is_drawn(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    for share in (0.1, 0.3):
        experiment = {"kind": "pipeline", "name": "one", "schedule": "1f1b", "stages": 4, "micro_batches": 8}
        kept(store, "schedules", experiment, {"idle_share": share})
    (row,) = bubbles.data(latest(read_results(store), "schedules"))
    assert (row.run, row.idle_share) == (2, 0.3)


def test_without_runs_the_next_command_is_said(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for store in (tmp_path / "empty", tmp_path / "nowhere"):
        said = command("figures", "--all", "--store", store, "--out", tmp_path / "figures")
        assert said.code == 2
        assert "sbplan run all.toml --quick" in said.err
    assert not (tmp_path / "figures").exists()
