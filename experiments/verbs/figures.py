"""Draw the figures of the papers."""

from __future__ import annotations

import argparse

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan figures` takes."""
    parser.add_argument("--all", action="store_true", help="every figure, also those that take long")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan figures'")
