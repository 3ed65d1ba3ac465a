"""Recompute the shipped published numbers."""

from __future__ import annotations

import argparse

from experiments.arguments import add_json
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan validate` takes."""
    parser.add_argument("--search", action="store_true", help="recompute the published search results too")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan validate'")
