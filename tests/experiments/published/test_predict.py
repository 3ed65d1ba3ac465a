"""`sbplan predict`: what predictions depend on, and what bad rows and bad files come to."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.published.fitting import reference
from experiments.published.predictions import COLUMNS
from experiments.published.rows import INPUTS, read_cells
from tests.experiments.conftest import Command

Rows = list[dict[str, str]]
OPEN = reference("training_measurements.csv")
MEASURED = (
    "iter_time_s", "iter_time_kind", "samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "tflops_def",
    "mfu_pct", "mem_gib_per_gpu", "mem_kind", "oom",
)  # fmt: skip
ABOUT = ("source", "source_path", "source_commit", "table_or_figure", "source_kind", "date", "quality",
         "inferred_fields", "notes")  # fmt: skip


def write(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())
    return path


def predicted(command: Command, path: Path) -> Rows:
    out = path.with_suffix(".out.csv")
    said = command("predict", path, "--out", out, "--json")
    assert said.code == 0, said.err
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert tuple(rows[0]) == COLUMNS
    assert json.loads(said.out)["rows"] == len(rows)
    return rows


def figures(rows: Rows) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in COLUMNS if name != "row_id") for row in rows]


def test_nearly_every_open_row_is_predicted_and_ordered(command: Command, tmp_path: Path) -> None:
    rows = predicted(command, write(tmp_path / "rows.csv", read_cells(OPEN)))
    done = [row for row in rows if row["status"] == "ok"]
    assert len(done) >= 0.95 * len(rows)
    for row in done:
        low, middle, high = (float(row[name]) for name in ("iter_time_lo_s", "iter_time_s", "iter_time_hi_s"))
        assert 0 < low <= middle <= high
        assert float(row["mem_gib_per_gpu"]) > 0


def test_what_was_measured_by_whom_and_in_what_order_changes_nothing(command: Command, tmp_path: Path) -> None:
    rows = read_cells(OPEN)
    kept = figures(predicted(command, write(tmp_path / "kept.csv", rows)))
    order = list(range(len(rows)))
    random.Random(7).shuffle(order)
    other = [
        rows[place] | dict.fromkeys((*MEASURED, *ABOUT), "") | {"row_id": f"row {number}"}
        for number, place in enumerate(order)
    ]
    shuffled = figures(predicted(command, write(tmp_path / "other.csv", other)))
    assert shuffled == [kept[place] for place in order]


def test_the_columns_that_are_read_are_no_measured_ones() -> None:
    assert not set(INPUTS) & {*MEASURED, *ABOUT, "row_id"}


@pytest.mark.parametrize(
    ("column", "text", "why"),
    [
        ("num_gpus", "nan", "num_gpus: got 'nan', expected a finite number above zero"),
        ("global_batch", "0", "global_batch: got '0', expected a finite number above zero"),
        ("hidden", "-2048", "hidden: got '-2048', expected a finite number above zero"),
        ("seq", "1024.5", "seq: got '1024.5', expected a whole number"),
        ("inter_bw_Gbps_per_node", "fast", "inter_bw_Gbps_per_node: got 'fast', expected a number"),
        ("seq", "", "seq is missing"),
        ("gpu", "TPUv4", "gpu: no data sheet of 'TPUv4'"),
        ("framework", "Caffe", "framework: 'Caffe' is not known"),
        ("dtype", "int3", "dtype: 'int3' is not known"),
        ("tp", "7", "is not num_gpus"),
        ("recompute", "sometimes", "recompute: got 'sometimes'"),
        ("zero_stage", "x", "zero_stage: got 'x', expected a number"),
    ],
)
def test_a_bad_row_says_why_and_the_others_are_predicted(
    column: str, text: str, why: str, command: Command, tmp_path: Path
) -> None:
    rows = [row for row in read_cells(OPEN) if row["row_id"].startswith("vtrain_single")][:3]
    good = predicted(command, write(tmp_path / "good.csv", rows))
    rows[1] = rows[1] | {column: text}
    bad = predicted(command, write(tmp_path / "bad.csv", rows))
    assert bad[1]["status"].startswith("unsupported: ")
    assert why in bad[1]["status"]
    assert [bad[0], bad[2]] == [good[0], good[2]]


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "", "no rows"),
        ("row_id,framework\na,b\n", "row 1", "columns are missing"),
        ("{header}\n{row},1\n", "row 2, column notes", "a row of another length"),
        ("{header}\n{row}\n{row}\n", "row 3, column row_id", "rows cannot be told apart"),
    ],
)
def test_a_wrong_file_is_refused_with_row_and_column(
    text: str, where: str, what: str, command: Command, tmp_path: Path
) -> None:
    header, row = OPEN.read_text().splitlines()[:2]
    path = tmp_path / "rows.csv"
    path.write_text(text.format(header=header, row=row))
    said = command("predict", path, "--out", tmp_path / "out.csv")
    assert said.code == 2
    assert where in said.err
    assert what in said.err
    assert not (tmp_path / "out.csv").exists()


def test_a_file_that_is_not_there_is_bad_input(command: Command, tmp_path: Path) -> None:
    assert command("predict", tmp_path / "none.csv", "--out", tmp_path / "out.csv").code == 2
