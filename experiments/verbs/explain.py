"""Why a plan is as it is, and why not otherwise."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan explain` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument("--op", metavar="NAME", help="the op to explain")
    parser.add_argument("--why-not", metavar="EXPR", help="a choice that was not taken")
    parser.add_argument("--diff", type=Path, metavar="PLAN", help="a plan to compare with")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan explain'")
