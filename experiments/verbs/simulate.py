"""Predict the timeline, step time and memory of a plan."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan simulate` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument("--calibration", type=Path, metavar="F", help="a calibration that 'sbplan refine' wrote")
    parser.add_argument("--trace", type=Path, metavar="F.json.gz", help="write the timeline for Perfetto")
    parser.add_argument("--figure", type=Path, metavar="F.png", help="draw the timeline")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan simulate'")
