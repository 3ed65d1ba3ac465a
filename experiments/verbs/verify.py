"""Check a plan without any search code: legality, memory, admission, certificate."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan verify` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan verify'")
