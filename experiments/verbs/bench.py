"""Measure ours against others: search, solver, the exchange of gradients; and how fast the simulator is."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json, positive_int, seconds
from experiments.command.console import emit, say, write_out
from strategy.base.errors import RunError

if TYPE_CHECKING:
    from experiments.bench.joint_bench import JointComparison
    from experiments.bench.search_bench import Comparison

SUBJECTS = ("cpu", "search", "joint", "objective", "simulator", "exchange")
TIME_LIMIT_S = 20.0
PAIRS = 50
BLOCKS = 5
LINK_GBIT_PER_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan bench` takes."""
    parser.add_argument("subject", choices=SUBJECTS, help="what to measure")
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=TIME_LIMIT_S,
        metavar="S",
        help=f"search, joint, objective: seconds for each method on each problem (default {TIME_LIMIT_S:g})",
    )
    parser.add_argument(
        "--pairs",
        type=positive_int,
        default=PAIRS,
        metavar="N",
        help="joint, objective: models on clusters (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="joint, objective: what these are drawn by (default %(default)s)",
    )
    parser.add_argument(
        "--blocks",
        type=positive_int,
        default=BLOCKS,
        metavar="N",
        help="cpu, exchange: rounds of all trials (default %(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="cpu, exchange: files go here (default: a run folder)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, print a line per problem as it is done, then the table or the document.

    Raises:
        RunError: another method found something cheaper than ours, or the objective is too far off.
    """
    if args.subject == "simulator":
        return bench_simulator(json=args.json)
    if args.subject == "cpu":
        return bench_cpu(args.out, args.blocks, json=args.json)
    if args.subject == "exchange":
        return bench_exchange(args.out, args.blocks, json=args.json)
    if args.subject == "objective":
        return bench_objective(args.pairs, args.seed, args.time_limit, json=args.json)
    if args.subject == "joint":
        return bench_joint(args.pairs, args.seed, args.time_limit, json=args.json)
    from experiments.bench.search_bench import compare, table
    from experiments.bench.search_problems import contest_problems, preset_problems
    from experiments.command.outputs import clean_stdout

    started = time.perf_counter()
    entries = (*preset_problems(), *contest_problems())
    done: list[Comparison] = []
    for number, entry in enumerate(entries, 1):
        with clean_stdout():
            done.append(compare(entry, args.time_limit))
        say(f"{number} of {len(entries)}: {progress_line(done[-1])}")
    worse = [f"{one.name} ({', '.join(one.worse_than)})" for one in done if one.worse_than]
    if args.json:
        emit(
            {
                "time_limit_s": args.time_limit,
                "bench_time_s": time.perf_counter() - started,
                "never_worse": not worse,
                "problems": [one.document() for one in done],
            }
        )
    else:
        write_out(f"{table(done)}\n")
    if worse:
        raise RunError(f"ours costs more than another's on {'; '.join(worse)}")
    return 0


def bench_joint(pairs: int, seed: int, time_limit_s: float, *, json: bool) -> int:
    """Compare whole searches, print a line per pair as it is done, then the table or the document.

    Raises:
        RunError: another method found something faster than ours, or the pairs cover too little.
    """
    from experiments.bench.joint_bench import compare, summary, summary_lines, table
    from experiments.bench.joint_problems import covered, joint_problems
    from experiments.command.outputs import clean_stdout

    started, problems = time.perf_counter(), joint_problems(pairs, seed)
    done: list[JointComparison] = []
    for number, problem in enumerate(problems, 1):
        with clean_stdout():
            done.append(compare(problem, time_limit_s))
        say(f"{number} of {pairs}: {joint_line(done[-1])}")
    worse = [
        f"{one.name} ({', '.join(f'{name} x {one.ratio(name):.4f}' for name in one.worse_than)})"
        for one in done
        if one.worse_than
    ]
    if json:
        emit(
            {
                "time_limit_s": time_limit_s,
                "seed": seed,
                "bench_time_s": time.perf_counter() - started,
                "covered": covered(problems),
                "never_worse": not worse,
                "summary": summary(done),
                "pairs": [one.document() for one in done],
            }
        )
    else:
        write_out(f"{table(done)}\n{summary_lines(done, problems)}\n")
    if worse:
        raise RunError(f"ours takes longer than another's on {'; '.join(worse)}")
    return 0


def joint_line(one: JointComparison) -> str:
    """The step of every method, and its seconds."""
    steps = (
        f"{name} {'none' if result.step_s is None else f'{result.step_s:.4f} s'} in {result.time_s:.1f} s"
        for name, result in one.results.items()
    )
    return f"{one.name}: {', '.join(steps)}"


def bench_objective(pairs: int, seed: int, time_limit_s: float, *, json: bool) -> int:
    """Price and simulate plans pinned at random, print a line per pair as it is done, then the summary or the document.

    Raises:
        RunError: an objective is too far off its simulation, or the pairs cover too little.
    """
    from experiments.bench.objective_bench import check_close, check_covered, covered, line, measured, summary, table
    from experiments.bench.objective_problems import QUOTAS, pinned_problems
    from experiments.command.outputs import clean_stdout

    started, done = time.perf_counter(), []
    for number in range(pairs):
        with clean_stdout():
            found = measured(pinned_problems(number, seed), time_limit_s)
        if found is not None:
            done.append(found)
        say(f"{number + 1} of {pairs}: {'no plan in time' if found is None else line(found)}")
    if json:
        emit(
            {
                "time_limit_s": time_limit_s,
                "seed": seed,
                "bench_time_s": time.perf_counter() - started,
                "covered": covered(done),
                "summary": summary(done),
                "pairs": [one.document() for one in done],
            }
        )
    else:
        counts = ", ".join(f"{name} {n} (at least {int(QUOTAS[name] * pairs)})" for name, n in covered(done).items())
        write_out(f"{table(done)}\ncovered: {counts}\n")
    check_covered(done, pairs)
    check_close(done)
    return 0


def bench_cpu(out: Path | None, blocks: int, *, json: bool) -> int:
    """Train small models by ours and by PyTorch in turn, and print the table or the document with all samples."""
    from executor.supervision.environment import rank_environment

    rank_environment()  # before NumPy is imported: this process measures a core, too
    from experiments.bench.cpu_bench import compare, lines
    from experiments.bench.cpu_models import CPU_MODELS
    from experiments.command.outputs import RUNS

    folder = out or RUNS / f"cpu-{time.time_ns() // 10**6}"
    found = compare(list(CPU_MODELS), folder, blocks, say)
    if json:
        emit(found)
    else:
        write_out(lines(found))
    return 0


def bench_exchange(out: Path | None, blocks: int, *, json: bool) -> int:
    """Time exchanges of gradients on two emulated nodes, and print what follows or the document with all samples."""
    from experiments.bench.exchange_bench import lines, run_trials
    from experiments.command.outputs import RUNS

    folder = out or RUNS / f"exchange-{time.time_ns() // 10**6}"
    found = run_trials(folder, blocks, LINK_GBIT_PER_S, say)
    if json:
        emit(found)
    else:
        write_out(lines(found))
    return 0


def bench_simulator(*, json: bool) -> int:
    """Print how fast each way of simulating is."""
    from experiments.bench.simulator_bench import speeds

    found = []
    for speed in speeds():
        found.append(speed.document())
        rate = f"{speed.count / speed.best_s:,.0f} {speed.unit}/s"
        say(f"{speed.name}: {speed.count} {speed.unit} in {speed.best_s * 1e3:.3f} ms ({rate})")
    if json:
        emit({"speeds": found})
    return 0


def progress_line(one: Comparison) -> str:
    """What our solver did, and the best of the others."""
    ours, *others = one.results.items()
    costs = [(result.cost, name) for name, result in others if result.cost is not None]
    best = f"{min(costs)[0]} by {min(costs)[1]}" if costs else "none"
    gap = "" if ours[1].gap is None else f", gap {ours[1].gap:.3%}"
    return (
        f"{one.name}: built in {one.build_s:.1f} s, cost {ours[1].cost}{gap} in {ours[1].time_s:.1f} s; others {best}"
    )
