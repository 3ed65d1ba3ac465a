"""Measure ours against what a user would take instead, in paired runs."""

from __future__ import annotations

import argparse

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan bench` takes."""
    parser.add_argument("subject", choices=["cpu", "gpu", "search"], help="what to measure")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan bench'")
