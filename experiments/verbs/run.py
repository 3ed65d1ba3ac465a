"""Run a suite of experiments that a TOML file lists; a suite that was stopped goes on where it was.

Under mpiexec the ranks share the experiments out. Figures of the results: 'sbplan figures --all'.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from experiments.command.arguments import add_json
from experiments.command.console import emit, say
from experiments.command.exit_codes import EXIT_LIMIT
from experiments.command.outputs import RUNS, clean_stdout
from strategy.base.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan run` takes."""
    parser.add_argument("suite", metavar="SUITE.toml", help="a suite's file, or the name of a shipped one: all.toml")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller experiments, as the suite says")
    parser.add_argument("--out", type=Path, default=RUNS, metavar="DIR", help="the store of the runs (runs)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do what is not done yet.

    Raises:
        RunError: an experiment failed; the others are done.
    """
    from executor.supervision.environment import rank_environment

    rank_environment()  # before NumPy: ranks compute with one thread, and so does what times them
    from experiments.store.store import RunStore
    from experiments.suites.running import run_suite
    from experiments.suites.suite import find_suite, read_suite

    began = time.perf_counter()
    suite = read_suite(find_suite(args.suite), quick=args.quick)
    with clean_stdout():
        found = run_suite(suite, RunStore(args.out), say)
    if found is None:
        return 0
    seconds = time.perf_counter() - began
    if args.json:
        emit({"suite": args.suite, "store": str(args.out), **asdict(found), "run_time_s": seconds})
    say(f"{args.out}: {len(found.done)} done in {seconds:.0f} s, {len(found.earlier)} earlier; sbplan figures --all")
    if found.left:
        say(f"left for a run without mpiexec, since they start ranks themselves: {', '.join(found.left)}")
    if found.failed:
        raise RunError(f"failed: {', '.join(name for name, _ in found.failed)}; 'sbplan run' tries them again")
    return EXIT_LIMIT if found.left else 0
