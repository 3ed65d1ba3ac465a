"""The main job, end to end, on this machine: search, simulate, train, measure, refine, search again."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json, positive_int
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan demo` takes."""
    parser.add_argument(
        "--ranks", type=positive_int, default=2, metavar="N", help="processes to train with (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep plans, measurements and figures in this folder")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan demo'")
