"""Predict rows of published measurements."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan predict` takes."""
    parser.add_argument("rows", metavar="ROWS.csv", type=Path, help="rows that describe training runs")
    parser.add_argument("--out", type=Path, required=True, metavar="PREDICTIONS.csv", help="write the predictions here")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan predict'")
