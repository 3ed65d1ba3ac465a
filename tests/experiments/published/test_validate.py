"""`sbplan validate`: the figures that the models must reach on runs that their fits have not seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.published import exchange_figures
from experiments.published.fitting import (
    COLLECTIVES,
    measured_rows,
    read_all_reduces,
    read_runs,
    reference,
)  # fmt: skip
from experiments.published.predictions import Prediction
from experiments.published.scores import choices, score
from experiments.published.source_figure import SourceFigure
from experiments.published.validation import FOLDS, folds_of
from strategy.closed_form.calibration import TIME, read_constants, shipped
from tests.experiments.conftest import Command

Row = dict[str, str]
SECOND = (
    "automodel", "golden_7b", "golden_bert", "golden_gpt", "golden_hybrid", "golden_moe", "internevo", "mlperf_lora",
    "mlperf_pre", "primus", "simumax_dense", "tpu",
)  # fmt: skip


def row(name: str, seconds: str, **cells: str) -> Row:
    columns = (
        "source", "framework", "framework_version", "date", "model", "gpu", "num_gpus", "layers", "hidden", "heads",
        "ffn", "seq", "vocab", "dtype", "global_batch", "recompute", "mem_gib_per_gpu", "oom",
    )  # fmt: skip
    return dict.fromkeys(columns, "") | {"row_id": name, "iter_time_s": seconds} | cells


def guess(name: str, seconds: float, spread: float = 1.1, **more: Any) -> Prediction:
    return Prediction(name, "ok", seconds, seconds / spread, seconds * spread, **more)


def test_scores_are_those_of_the_hand() -> None:
    rows = [row("a_1", "1"), row("a_2", "2"), row("a_3", "4", mem_gib_per_gpu="10"), row("a_4", "8"), row("a_5", "9"),
            row("a_6", "", oom="yes")]  # fmt: skip
    predictions = [
        guess("a_1", 1.05), guess("a_2", 2.0), guess("a_3", 6.0, memory_gib=12.0), guess("a_4", 5.0),
        Prediction("a_5", "unsupported: why"), guess("a_6", 1.0, out_of_memory=True),
    ]  # fmt: skip
    found = score(rows, predictions)["a"]
    assert (found.rows, found.predicted) == (6, 4)
    assert found.error == pytest.approx((0.05 + 0 + 0.5 + 0.375 + 1) / 5)
    assert found.error_p90 == 1.0
    assert found.covered == pytest.approx(2 / 5)
    assert found.width == pytest.approx(1.21 - 1)
    assert found.tau == pytest.approx((5 - 1) / 6)
    assert found.regret == 0
    assert found.memory_error == pytest.approx(0.2)
    assert found.width_p90 == pytest.approx(1.21 - 1)
    assert found.large_memory_error is None, "it is not said to be allocated"
    assert (found.out_of_memory, found.out_of_memory_found, found.false_alarms) == (1, 1, 0)


def test_a_published_search_is_repeated_by_the_predictions() -> None:
    """The way predicted fastest is chosen among those that ran; what it takes is what was measured of it."""
    ways = [("1", "8", "2", 2.2), ("2", "4", "1.5", 1.8), ("4", "2", "1.6", 1.7), ("8", "1", "3", 2.9)]
    rows = [row(f"a_{tp}", seconds, tp=tp, dp=dp, num_gpus="8", global_batch="64") for tp, dp, seconds, _ in ways]
    rows = [one | dict.fromkeys(("pp", "vpp", "ep", "cp", "zero_stage", "micro_batch"), "") for one in rows]
    (found,) = choices(rows, [guess(f"a_{tp}", predicted) for tp, _, _, predicted in ways])
    assert (found.chosen, found.fastest, found.ways, found.gpus) == ("tp 4 dp 2", "tp 2 dp 4", 4, 8)
    assert found.regret == pytest.approx(1.6 / 1.5 - 1)
    assert choices(rows[:3], [guess("a", 1.0)] * 3) == [], "too few to choose from"


def test_groups_are_kept_whole_and_every_large_family_is_in_several_folds() -> None:
    runs = read_runs(measured_rows(), shipped().constants)
    folds = folds_of(runs)
    assert set(folds.tolist()) == set(range(FOLDS))
    seen: dict[tuple[str, ...], int] = {}
    for item, family, fold in zip(runs.rows, runs.families, folds.tolist(), strict=True):
        second = "mem_rank" in item.cells
        cut = tuple(item.cells[name] for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "num_gpus"))
        key = (family, item.cells["model"], *(cut if second else (item.cells["gpu"], item.cells["num_gpus"])))
        assert seen.setdefault(key, fold) == fold
    for family in set(runs.families) - {"mtnlg", "golden_7b"}:
        assert len(set(folds[runs.family(family)].tolist())) >= 2, family


def test_runs_are_priced_once_and_only_by_the_constants_that_concern_them() -> None:
    rows = [row for row in measured_rows() if row.cells["row_id"].startswith(("dlperf_rn50", "titan", "mcore"))]
    runs = read_runs(rows, shipped().constants)
    once = runs.priced(shipped().constants)
    assert runs.priced(dict(shipped().constants)) is once
    touched = dict(zip((constant.name for constant in TIME), runs.priced.touched(TIME), strict=True))
    assert touched["bytes.rate"].all()
    for constant, family in (("slack.torchtitan", "titan"), ("slack.core", "mcore"), ("conv.moved", "dlperf_rn50")):
        assert (touched[constant] == runs.family(family)).all(), constant
    for shift in (0.7, 1.4):
        moved = dict(shipped().constants) | {"slack.torchtitan": shift}
        assert ((runs.priced(moved) != once) <= touched["slack.torchtitan"]).all()


def test_all_reduces_between_gpus_without_a_sheet_are_left_out() -> None:
    measured = read_all_reduces(reference(COLLECTIVES))
    assert not any(setup.startswith("H800") for setup in measured.setups)
    assert np.isfinite(measured.seconds).all()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_held_out_runs_are_predicted_as_well_as_promised(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for longest in ("tuner", "growth"):  # which test_sources recomputes
        figure = SourceFigure(longest, "", "", "", {}, True)
        monkeypatch.setattr(exchange_figures, longest, lambda figure=figure: figure)
    out = tmp_path / "constants.json"
    said = command("validate", "--choices", "--prices", "--json", "--out", out)
    assert said.code == 0, said.err
    found: Mapping[str, Any] = json.loads(said.out)
    within, across = found["within_macro"]["first"], found["across_macro"]["first"]
    assert found["parameters"] <= 150
    assert within["error"] <= 0.069
    assert within["error_p90"] <= 0.18
    assert across["error"] <= 0.15
    assert within["memory_error"] <= 0.10
    assert 0.85 <= within["covered"] <= 0.95
    assert within["width"] <= 0.45
    assert within["tau"] >= 0.8
    assert within["regret"] <= 0.03
    others, far = found["within_macro"]["second"], found["across_macro"]["second"]
    assert others["error"] <= 0.12
    assert others["error_p90"] <= 0.30
    assert others["memory_error"] <= 0.08
    assert others["large_memory_error"] <= 0.03
    assert 0.85 <= others["covered"] <= 0.95
    assert others["width"] <= 0.62
    assert far["error"] <= 0.22
    assert far["covered"] >= 0.8
    assert far["width"] <= 1.2
    for way, most in (("within", 2.0), ("across", 3.0)):
        widths = {name: item["width_p90"] for name, item in found[way].items() if name in SECOND}
        assert max(width for width in widths.values() if width is not None) <= most, widths
    assert set(found["untold"]) >= {"golden_gpt", "sc21_t2"}
    assert found["untold"]["golden_gpt"]["error"] > found["across"]["golden_gpt"]["error"], "what sight is worth"
    rows = sum(item["rows"] for item in found["within"].values())
    assert sum(item["predicted"] for item in found["within"].values()) >= 0.95 * rows
    assert sum(item["false_alarms"] for item in found["within"].values()) <= 1
    assert all(item["out_of_memory_found"] == item["out_of_memory"] for item in found["within"].values())
    assert max(found["collectives"].values()) < 0.12
    assert len(found["figures"]) >= 19
    assert all(figure["within"] for figure in found["figures"])
    chosen = found["choices"]
    assert len(chosen) > 60
    assert sum(one["chosen"] == one["fastest"] for one in chosen) >= len(chosen) / 2
    assert "published search" in said.err
    files = [one for one in found["prices"] if one["configuration"]]
    assert len(files) >= 35
    assert sum(abs(one["priced_s"] / one["measured_s"] - 1) for one in files) / len(files) <= 0.12
    again, kept = read_constants(out).constants, shipped().constants
    assert again == pytest.approx(kept, rel=0.02), "the shipped constants are not those of this code"
    memory, known = read_constants(out).memory, shipped().memory
    assert memory is not None
    assert known is not None
    assert memory.runs == known.runs
    for framework in (*known.scales, ""):
        assert memory.margin(framework, 0.95) == pytest.approx(known.margin(framework, 0.95), rel=0.02), framework
