"""List the runs of the run store."""

from __future__ import annotations

import argparse

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`sbplan runs` takes nothing."""


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan runs'")
