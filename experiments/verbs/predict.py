"""Predict rows of published measurements."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.command.arguments import add_json
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan predict` takes."""
    parser.add_argument("rows", metavar="ROWS.csv", type=Path, help="rows that describe training runs")
    parser.add_argument("--out", type=Path, required=True, metavar="PREDICTIONS.csv", help="write the predictions here")
    parser.add_argument("--constants", type=Path, metavar="FILE", help="fitted constants (default: the shipped ones)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Predict every row that can be, and say why of the others."""
    from experiments.published.predictions import as_csv, predict
    from experiments.published.rows import read_rows
    from strategy.base.files import write_atomic
    from strategy.closed_form.calibration import read_constants, shipped

    check_output_path(args.out, "--out")
    rows = read_rows(args.rows)
    fitted = read_constants(args.constants) if args.constants else shipped()
    predictions = predict(rows, fitted)
    write_atomic(args.out, as_csv(predictions))
    for row, prediction in zip(rows, predictions, strict=True):
        if prediction.status != "ok":
            say(f"{args.rows}: row {row.number} ({row.cells['row_id']}): {prediction.status}")
    done = sum(prediction.status == "ok" for prediction in predictions)
    beyond = sum(bool(prediction.extrapolated) for prediction in predictions)
    if args.json:
        emit({"rows": len(rows), "predicted": done, "extrapolated": beyond, "out": str(args.out)})
    say(f"{args.out}: {done} of {len(rows)} rows predicted, {beyond} of them beyond what the constants were fitted to")
    return 0
