"""The main job, end to end, on this machine: search, simulate, train, measure, refine, search again."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.command.arguments import add_json, positive_int
from experiments.command.outputs import RUNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan demo` takes."""
    parser.add_argument(
        "--ranks", type=positive_int, default=2, metavar="N", help="processes to train with (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep plans, measurements and figures here (default: a run folder)"
    )
    parser.add_argument(
        "--blocks", type=positive_int, default=4, metavar="N", help="timed blocks (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=positive_int,
        default=7,
        metavar="N",
        help="steps of each plan in a block (default: %(default)s)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Search, run, refine, search again; a table on stderr, the document on stdout."""
    from executor.supervision.environment import rank_environment

    rank_environment()  # before NumPy is imported: this process measures a core, too
    from experiments.command.console import emit, say
    from experiments.loop.demo_report import draw, table
    from experiments.loop.loop import document, run_loop
    from experiments.store.store import RunStatus, RunStore
    from strategy.base.errors import InputError

    if args.ranks < 2 or args.steps < 3 or args.blocks < 3:
        raise InputError("too small for a comparison", got=vars(args), expected="ranks >= 2, steps >= 3, blocks >= 3")
    store = RunStore(RUNS)
    record = store.create("demo", {"ranks": args.ranks, "blocks": args.blocks, "steps": args.steps})
    folder = (args.out or record.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = run_loop(args.ranks, folder, blocks=args.blocks, steps=args.steps, progress=say)
    except BaseException:
        store.finish(record, RunStatus.FAILED, {})
        raise
    summary = document(outcome)
    figures = draw(outcome, folder)
    say(table(outcome))
    for figure in figures:
        say(f"figure: {figure}")
    store.finish(record, RunStatus.DONE, summary | {"plan_hash": outcome.first.plan.plan_hash})
    if args.json:
        emit(summary)
    return 0
