"""Find the best plan for a model on a cluster, and say how good it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.arguments import add_json, positive_int, seconds
from experiments.console import not_there_yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan search` takes."""
    parser.add_argument(
        "model", metavar="MODEL", help="a preset, a HF config.json, an .onnx file, or package.module:function"
    )
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="CLUSTER",
        help="a TOML file, 'local', or a preset with a node count (dgx-a100:128)",
    )
    parser.add_argument(
        "--global-batch", type=positive_int, metavar="N", help="samples per step (default: the model's)"
    )
    parser.add_argument("--seq", type=positive_int, metavar="N", help="tokens per sample (default: the model's)")
    parser.add_argument("--calibration", type=Path, metavar="F", help="a calibration that 'sbplan refine' wrote")
    parser.add_argument("--pin", type=Path, metavar="F", help="a TOML file that fixes parts of the plan")
    parser.add_argument(
        "--time-limit", type=seconds, metavar="S", help="stop after so many seconds with the best plan so far"
    )
    parser.add_argument("--out", type=Path, metavar="PLAN", help="write the plan here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say that this verb is not there yet."""
    raise not_there_yet("'sbplan search'")
