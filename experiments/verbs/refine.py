"""Fit the time model to measured runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan refine` takes."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of measured runs")
    parser.add_argument("--calibration", type=Path, required=True, metavar="F", help="the calibration to start from")
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="write the new calibration here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan refine'")
