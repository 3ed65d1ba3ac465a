"""Train by a plan: under mpiexec, one process per rank, or with --launch, which starts the ranks itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json, positive_int
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan train` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument("--steps", type=positive_int, metavar="N", help="stop after so many steps")
    parser.add_argument("--data", type=Path, metavar="PATH", help="tokens to train on (default: synthetic)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="save the training state in this folder")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument(
        "--backend", choices=["numpy", "cupy"], default="numpy", help="what computes (default: %(default)s)"
    )
    parser.add_argument("--launch", action="store_true", help="start the plan's ranks on this machine")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan train'")
