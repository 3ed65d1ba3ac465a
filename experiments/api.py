"""The Python API: the command line's verbs as functions, with its words.

Options are the flags of the verb, with underscores: `--global-batch 64` is `global_batch=64`, `--no-search` is
`no_search=True`, `--for` is `for_`. What is wrong with them is the same `InputError` as there. Each function gives back
a value in place of a page.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strategy.base.budget import Budget
from strategy.base.errors import InputError, RunError

if TYPE_CHECKING:
    from simulator.simulate import Simulation
    from strategy.plan.plan import Plan
    from strategy.search.search_result import SearchResult
    from strategy.trainers.priced import TrainerPrice


def search(model: str, **options: Any) -> SearchResult:
    """The best plan for a model on a cluster, its bound, and the plans next to it.

    Args:
        model: a preset, a config.json, a program: MODEL of `sbplan search`.
        options: flags of `sbplan search`; of `gpus` one number. With `out`, the plan is written, too.

    Raises:
        InputError: an option is wrong.
        InfeasibleError, OutOfTimeError: there is no plan, or none was found in time.
    """
    from experiments.planning.prices import simulated_step
    from experiments.planning.request import clusters_of, request_of
    from strategy.plan.plan import write_plan
    from strategy.search.search import search as searched

    args = _parsed("search", model, **options)
    if str(args.cluster).partition(":")[0] == "local":
        from executor.supervision.environment import rank_environment

        rank_environment()  # a rank computes with one thread, so it is measured with one
    clusters = clusters_of(args)
    if len(clusters) > 1:
        raise InputError("counts of GPUs are compared by the command", where="search: gpus", expected="one number")
    request = request_of(args, clusters[0]).request
    found = searched(request, simulate=simulated_step, budget=Budget.of(args.time_limit))
    if "out" in options:
        write_plan(found.plan, args.out)
    return found


def price(file: str | Path, **options: Any) -> TrainerPrice:
    """What a trainer's configuration costs: the step with its interval, time and memory by cause.

    Args:
        file: FILE of `sbplan price`.
        options: flags of `sbplan price`; those of its search have no effect.

    Raises:
        InputError: the file cannot be read, or an option is wrong.
    """
    from experiments.verbs.price import machine_for
    from strategy.closed_form.calibration import shipped
    from strategy.trainers.priced import priced
    from strategy.trainers.read import read_configuration

    args = _parsed("price", file, **options)
    found = read_configuration(args.file, trainer=args.trainer, model=args.model, sequence=args.seq, gpu=args.gpu or "")
    machine, _ = machine_for(args, found)
    return priced(found.trained, machine, shipped())


def simulate(plan: Plan | str | Path, *, steps: int | None = None) -> Simulation:
    """A plan under the virtual clock: step time, memory, bubble, and the timeline.

    Args:
        plan: or the file of one.
        steps: how many are run (default: two, one of large plans).

    Raises:
        InputError: the file is no plan.
        DeadlockError: it hangs.
    """
    from executor.train import program_of
    from simulator.simulate import simulate as simulated
    from strategy.plan.plan import Plan, read_plan

    found = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    return simulated(program_of(found), steps=steps, peak_flop_per_s=found.peak_flop_per_s)


def train(plan: Plan | str | Path, **options: Any) -> Path:
    """Train by a plan on this machine's ranks; gives the run's folder, with its timeline and measurements.

    Args:
        plan: or the file of one.
        options: flags of `sbplan train`, such as `steps`; `launch` is meant.

    Raises:
        InputError: an option is wrong.
        RunError: the run failed.
    """
    from executor.supervision.launch import launch
    from experiments.command.outputs import RUNS
    from experiments.jobs.ranks import rank_argv
    from strategy.plan.plan import Plan, read_plan, write_plan

    folder = RUNS / f"train-{time.time_ns() // 10**6}-{os.getpid()}"
    path = folder / "chosen.json" if isinstance(plan, Plan) else Path(plan)
    _parsed("train", path, **options)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(plan, Plan):
        write_plan(plan, path)
    ranks = plan.ranks if isinstance(plan, Plan) else read_plan(path).ranks
    code = launch(rank_argv("train", [str(path), *_flags(options)]), ranks, folder=folder)
    if code:
        raise RunError(f"the run ended with exit code {code}; see {folder}")
    return folder


def report(plan: Plan | str | Path, *, out: str | Path = "report.html", **options: Any) -> Path:
    """One page for the browser about a plan, or the folder of a run.

    Args:
        plan: or the file of one, or a run's folder.
        out: where the page is written.
        options: flags of `sbplan report`.

    Raises:
        InputError: an option is wrong, or the file is no plan.
        PlanError: the plan is refused.
    """
    from experiments.verbs.report import run
    from strategy.plan.plan import Plan, write_plan

    path = Path(out).with_suffix(".plan.json") if isinstance(plan, Plan) else Path(plan)
    if isinstance(plan, Plan):
        write_plan(plan, path)
    run(_parsed("report", path, out=out, **options))
    return Path(out)


def _parsed(verb: str, *words: object, **options: Any) -> argparse.Namespace:
    """What the verb reads from these words and options."""
    from experiments.cli import parse

    return parse(verb, [*map(str, words), *_flags(options)])[1]


def _flags(options: dict[str, Any]) -> list[str]:
    """`global_batch=64` -> `--global-batch 64`; True is a flag alone, None and False are none."""
    found: list[str] = []
    for option, value in options.items():
        if value is None or value is False:
            continue
        found.append("--" + option.rstrip("_").replace("_", "-"))
        if value is not True:
            found += map(str, value) if isinstance(value, list | tuple) else [str(value)]
    return found
