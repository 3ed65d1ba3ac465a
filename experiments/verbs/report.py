"""Write a plan or a run as one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan report` takes."""
    parser.add_argument("subject", metavar="PLAN|RUN", type=Path, help="a plan file or a run's folder")
    parser.add_argument("--out", type=Path, required=True, metavar="F.html", help="write the page here")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan report'")
