"""Measure ops and collectives here, under mpiexec."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan profile` takes."""
    parser.add_argument("--out", type=Path, metavar="F", help="write the measurements here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan profile'")
