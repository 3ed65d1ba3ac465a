"""Train by a plan: under mpiexec, one process per rank, or with --launch, which starts the ranks itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.command.arguments import add_json, positive_int
from experiments.command.outputs import RUNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan train` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument(
        "--steps", type=positive_int, default=20, metavar="N", help="train until step N (default: %(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="text to train on (default: the sources of Python's standard library)"
    )
    parser.add_argument(
        "--init",
        type=Path,
        metavar="FILE",
        help="start with these weights of a GPT-2 or a decoder: a safetensors file in Hugging Face's layout, an index "
        "of several, or the folder of either",
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="save the training state in this folder")
    parser.add_argument(
        "--checkpoint-every",
        type=positive_int,
        default=10,
        metavar="N",
        help="and so often (default: %(default)s steps)",
    )
    parser.add_argument(
        "--keep", type=positive_int, metavar="N", help="keep the newest N of them only (default: keep all)"
    )
    parser.add_argument(
        "--grace",
        type=positive_int,
        default=25,
        metavar="S",
        help="seconds that Ctrl-C or SIGTERM leave to finish a step and begin a last save (default: %(default)s)",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument(
        "--backend", choices=["numpy", "cupy"], default="numpy", help="what computes (default: %(default)s)"
    )
    text = "with cupy: let ranks of a node share its GPUs where there are fewer; to try a plan, for it is slow"
    parser.add_argument("--share-devices", action="store_true", help=text)
    text = "learn, to the last bit, what other numbers of ranks and stages do with micro-batches of the same size"
    parser.add_argument("--bitwise", action="store_true", help=text)
    parser.add_argument("--launch", action="store_true", help="start the plan's ranks on this machine")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Become a rank, or start the ranks."""
    from executor.supervision.environment import job_name
    from executor.supervision.rank import run_rank
    from executor.supervision.watchdog import Limits

    if args.launch:
        return _launch(args)
    # NumPy and MPI are imported under guard, in the rank's own process.
    run_rank(lambda: _train(args), folder=RUNS / f"train-{job_name()}", limits=Limits(grace_s=args.grace))


def _train(args: argparse.Namespace) -> int:
    from experiments.jobs.training import train

    return train(args)


def _launch(args: argparse.Namespace) -> int:
    import os
    import time

    from executor.supervision.launch import launch
    from experiments.command.console import say
    from experiments.jobs.ranks import rank_argv
    from strategy.plan.plan import read_plan

    plan = read_plan(args.plan)
    arguments = [str(args.plan), "--steps", str(args.steps), "--checkpoint-every", str(args.checkpoint_every)]
    flags = {
        "--data": args.data,
        "--init": args.init,
        "--checkpoint": args.checkpoint,
        "--keep": args.keep,
        "--grace": args.grace,
        "--backend": args.backend,
    }
    for flag, value in flags.items():
        arguments += [] if value is None else [flag, str(value)]
    switches = {
        "--resume": args.resume,
        "--bitwise": args.bitwise,
        "--share-devices": args.share_devices,
        "--json": args.json,
    }
    arguments += [flag for flag, given in switches.items() if given]
    folder = RUNS / f"train-{time.time_ns() // 10**6}-{os.getpid()}"
    code = launch(rank_argv("train", arguments), plan.ranks, folder=folder)
    if code:
        say(f"sbplan: see {folder}")
    return code
