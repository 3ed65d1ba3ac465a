"""`sbplan predict`: what predictions depend on, and what bad rows and bad files come to."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.published.cells import UNREAD, read_cells
from experiments.published.fitting import TRAINING, reference
from experiments.published.predictions import COLUMNS
from experiments.published.row_shapes import possible_heads
from strategy.closed_form.calibration import shipped
from tests.experiments.conftest import Command
from tests.support.long_parameters import long_but

Rows = list[dict[str, str]]
OPEN, SECOND = map(reference, TRAINING)


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


@pytest.mark.parametrize("path", long_but([OPEN, SECOND], 1))
def test_every_open_row_is_predicted_and_ordered(path: Path, command: Command, tmp_path: Path) -> None:
    for row in predicted(command, write(tmp_path / "rows.csv", read_cells(path))):
        assert row["status"] == "ok"
        low, middle, high = (float(row[name]) for name in ("iter_time_lo_s", "iter_time_s", "iter_time_hi_s"))
        assert 0 < low <= middle <= high
        assert 0 < float(row["mem_allocated_gib"]) <= float(row["mem_reserved_gib"])
        assert float(row["mem_gib_per_gpu"]) > 0


@pytest.mark.parametrize("path", long_but([OPEN, SECOND], 1))
def test_what_was_measured_by_whom_and_in_what_order_changes_nothing(
    path: Path, command: Command, tmp_path: Path
) -> None:
    rows = read_cells(path)
    kept = figures(predicted(command, write(tmp_path / "kept.csv", rows)))
    order = list(range(len(rows)))
    random.Random(7).shuffle(order)
    other = [
        rows[place] | {name: "" for name in UNREAD if name in rows[place]} | {"row_id": f"row {number}"}
        for number, place in enumerate(order)
    ]
    shuffled = figures(predicted(command, write(tmp_path / "other.csv", other)))
    assert shuffled == [kept[place] for place in order]


@pytest.mark.parametrize("path", long_but([OPEN, SECOND]))
def test_random_texts_in_what_is_not_read_change_nothing(path: Path, command: Command, tmp_path: Path) -> None:
    """Ids, notes, sources, measured figures; and models' names where dimensions are given, a hybrid's pattern too."""
    rows = read_cells(path)
    kept = figures(predicted(command, write(tmp_path / "kept.csv", rows)))
    rng = random.Random(3)
    named = 0
    for number, row in enumerate(rows):
        unread = [name for name in UNREAD if name in row]
        changed = {name: "".join(rng.choices("abcdefgh-378 .,;\u00e9%", k=rng.randrange(12))) for name in unread}
        if row["hidden"] and row.get("arch", "") != "hybrid":
            changed["model"] = "".join(rng.choices("abcdefgh-378", k=9))
            named += 1
        rows[number] = row | changed | {"row_id": f"{rng.getrandbits(60):x} {number}"}
    assert named >= len(rows) / 2
    assert figures(predicted(command, write(tmp_path / "other.csv", rows))) == kept
    print(f"{len(rows)} rows, {named} with another name of their model, {len(UNREAD)} columns")


def test_a_device_without_a_sheet_is_predicted_wide_and_what_was_taken_is_said(
    command: Command, tmp_path: Path
) -> None:
    rows = [row for row in read_cells(SECOND) if row["row_id"].startswith("simumax")][:1]
    known, unknown = predicted(
        command, write(tmp_path / "rows.csv", [rows[0], rows[0] | {"gpu": "NPU-9", "row_id": "x", "micro_batch": ""}])
    )
    assert (known["extrapolated"], unknown["extrapolated"]) == ("", "device; gpu guessed")
    halves = [math.log(float(row["iter_time_hi_s"]) / float(row["iter_time_lo_s"])) / 2 for row in (known, unknown)]
    assert halves[1] == pytest.approx(math.hypot(1.5 * halves[0], shipped().guesses["gpu"]), rel=1e-3)
    assert "gpu of the nearest memory; micro_batch 1" in unknown["defaults"]


@pytest.mark.parametrize(
    ("column", "text", "why"),
    [
        ("num_gpus", "nan", "num_gpus: got 'nan', expected a finite number above zero"),
        ("global_batch", "0", "global_batch: got '0', expected a finite number above zero"),
        ("hidden", "-2048", "hidden: got '-2048', expected a finite number above zero"),
        ("seq", "1024.5", "seq: got '1024.5', expected a whole number"),
        ("inter_bw_Gbps_per_node", "fast", "inter_bw_Gbps_per_node: got 'fast', expected a number"),
        ("zero_stage", "x", "zero_stage: got 'x', expected a number"),
        ("hidden", "1e300", "hidden: got '1e300', expected at most 2^53"),
        ("ffn", "1e308", "ffn: got '1e308', expected at most 2^53"),
    ],
)
def test_a_bad_row_says_why_and_the_others_are_predicted(
    column: str, text: str, why: str, command: Command, tmp_path: Path
) -> None:
    rows = [row for row in read_cells(OPEN) if row["row_id"].startswith("vtrain_single")][:3]
    good = predicted(command, write(tmp_path / "good.csv", rows))
    rows[1] = rows[1] | {"heads": "", "ffn": "", column: text}
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


def test_a_row_whose_figures_come_to_nothing_finite_is_refused_alone(command: Command, tmp_path: Path) -> None:
    rows = [row for row in read_cells(OPEN) if row["row_id"].startswith("vtrain_single")][:2]
    good = predicted(command, write(tmp_path / "good.csv", rows))
    rows.append(rows[0] | {"row_id": "slow", "gpus_per_node": "1", "num_gpus": "2", "dp": "2", "tp": "1", "pp": "1"})
    rows[2] |= {"inter_bw_Gbps_per_node": "1e-318"}
    found = predicted(command, write(tmp_path / "bad.csv", rows))
    assert found[:2] == good
    assert found[2]["status"].startswith("unsupported: ")


def test_a_release_that_is_no_number_is_none(command: Command, tmp_path: Path) -> None:
    rows = [row for row in read_cells(OPEN) if row["row_id"].startswith("vtrain_single")][:1]
    plain = figures(predicted(command, write(tmp_path / "plain.csv", [rows[0] | {"framework_version": ""}])))
    for version in ("\u00b2\u00b2.4 NeMo", "26.\u00b2 NeMo", f"26.{'9' * 5000}"):
        odd = rows[0] | {"framework_version": version}
        assert figures(predicted(command, write(tmp_path / "odd.csv", [odd]))) == plain


def test_possible_heads_are_those_of_every_number_tried() -> None:
    for hidden, tp in [(64, 1), (192, 1), (256, 2), (1024, 3), (4096, 8), (5120, 5), (12288, 8), (25600, 1)]:
        tried = [n for n in range(tp, hidden, tp) if hidden % n == 0 and 96 <= hidden // n <= 256]
        assert possible_heads(hidden, tp) == tried
    assert possible_heads(10**12, 1) == sorted(10**12 // width for width in range(96, 257) if 10**12 % width == 0)


def test_a_mark_of_the_byte_order_is_no_part_of_a_column(command: Command, tmp_path: Path) -> None:
    rows = [row for row in read_cells(OPEN) if row["row_id"].startswith("vtrain_single")][:2]
    path = write(tmp_path / "rows.csv", rows)
    plain = predicted(command, path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert predicted(command, path) == plain


def test_an_id_that_is_a_formula_is_written_as_text(command: Command, tmp_path: Path) -> None:
    rows = [row for row in read_cells(OPEN) if row["row_id"].startswith("vtrain_single")][:1]
    for name in ("=1+1", "+SUM(A1)", "-2+3", "@import", "\tx"):
        (found,) = predicted(command, write(tmp_path / "rows.csv", [rows[0] | {"row_id": name}]))
        assert found["row_id"] == f"'{name}"
    for name in ("-12.5", "+3", "a=b"):
        (found,) = predicted(command, write(tmp_path / "rows.csv", [rows[0] | {"row_id": name}]))
        assert found["row_id"] == name
