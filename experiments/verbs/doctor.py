"""Check this machine: what is there, what is missing, and how to get it."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan doctor` takes."""
    parser.add_argument("--ops", action="store_true", help="list the ops with their signatures")
    parser.add_argument("--write", type=Path, metavar="cluster.toml", help="describe this machine as a cluster")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan doctor'")
