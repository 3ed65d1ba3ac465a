"""Measure what ops and collectives cost here, on all ranks at once; under mpiexec, one process per rank."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.command.arguments import add_json
from experiments.command.outputs import RUNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan profile` takes."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("calibration.json"),
        metavar="F",
        help="write the calibration here (default: %(default)s)",
    )
    parser.add_argument(
        "--write", type=Path, metavar="cluster.toml", help="describe the nodes and the links that ranks are on"
    )
    parser.add_argument(
        "--kernels",
        choices=("numpy", "timed-wait"),
        default="numpy",
        help="what acts are run by; timed-wait: they only wait, as long as their work takes at a fixed rate, so that "
        "more ranks than cores can rehearse a plan (default: %(default)s)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Become a rank."""
    from executor.supervision.environment import job_name
    from executor.supervision.rank import run_rank

    # NumPy and MPI are imported under guard, in the rank's own process.
    run_rank(lambda: _profile(args), folder=RUNS / f"profile-{job_name()}")


def _profile(args: argparse.Namespace) -> int:
    from experiments.jobs.profiling import profile_ranks

    return profile_ranks(args.out, args.write, kernels=args.kernels, json=args.json)
