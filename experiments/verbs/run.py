"""Run a suite of experiments."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan run` takes."""
    parser.add_argument("suite", metavar="SUITE.toml", type=Path, help="the suite")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes of every experiment")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan run'")
