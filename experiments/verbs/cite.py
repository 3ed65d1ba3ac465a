"""Print the references of what a plan uses."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan cite` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan cite'")
