"""Write a plan for another training system."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan export` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument(
        "--to", required=True, choices=["megatron", "torchtitan", "deepspeed", "dtensor", "jax"], help="the system"
    )
    parser.add_argument("--lossy", action="store_true", help="leave out what the system cannot express")


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan export'")
