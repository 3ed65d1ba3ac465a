"""Find the best plan for a model on a cluster, and say how good it is."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import (
    TRAINERS,
    add_failures,
    add_json,
    fit_probability,
    gpu_range,
    positive_int,
    seconds,
    share,
    tokens,
)
from experiments.command.console import emit, say
from experiments.command.exit_codes import EXIT_LIMIT
from experiments.command.outputs import check_output_path, clean_stdout, make_folder
from experiments.planning.request import GAP, TIME_LIMIT_S, clusters_of, request_of
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError
from strategy.base.status import Status

if TYPE_CHECKING:
    from experiments.explanation.certainty import Certainty, Unknown
    from experiments.planning.gpu_counts import CountAnswer
    from experiments.studies.job_failures import FailureRates
    from strategy.cost.calibrate import Calibration
    from strategy.hardware.cluster import Cluster
    from strategy.layout.config import PlanConfig
    from strategy.plan.plan import Plan
    from strategy.search.search_result import SearchResult, Watch
    from strategy.space.request import Request

DEDUCTIONS = ("match-all", "match-most", "least-cost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan search` takes."""
    _add_question(parser)
    _add_restrictions(parser)
    _add_effort(parser)
    parser.add_argument(
        "--dump-passes",
        type=Path,
        metavar="DIR",
        help="write the plan's graph after every pass into this folder, as text",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("plan.json"), metavar="PLAN", help="write the plan here (default: %(default)s)"
    )
    add_json(parser)


def _add_question(parser: argparse.ArgumentParser) -> None:
    """What is trained, how, and on what."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a preset, such as gpt2-small, llama3-8b or resnet50; a Hugging Face folder, or its config.json; "
        "a .pt2 or .onnx file; or package.module:function of your own",
    )
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="a TOML file, 'local' (or local:N, with N ranks), or a preset with a node count (dgx-a100:128)",
    )
    parser.add_argument(
        "--gpus",
        type=gpu_range,
        metavar="N[..M]",
        help="instead of a cluster: so many GPUs, in whole nodes; of a range its ends and the powers of two of nodes "
        "between them, each with days and GPU-hours for --tokens, a plan where no other count is better in both "
        "(PLAN-64.json), and an even share of the time limit",
    )
    parser.add_argument("--gpu", metavar="NAME", help="of this kind: H100, A100-80, V100-16, ...")
    parser.add_argument(
        "--tokens", type=tokens, metavar="N", help="tell how long training on so many takes: 15T, 300B, 1e12"
    )
    parser.add_argument(
        "--figure", type=Path, metavar="F.png", help="of a range of --gpus: draw days against GPU-hours, with intervals"
    )
    add_failures(parser)
    parser.add_argument(
        "--global-batch", type=positive_int, metavar="N", help="samples per step (default: the model's)"
    )
    parser.add_argument("--seq", type=positive_int, metavar="N", help="tokens per sample (default: the model's)")
    parser.add_argument(
        "--training",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="how it is trained: precision (full, bf16, fp16, fp8-delayed, fp8-current, fp8-block, mxfp8, nvfp4; "
        "default: bf16 where the device has tensor cores for it, as from A100 on, else full), optimizer (adamw, lamb, "
        "muon, ...), lr, decay, ...",
    )
    parser.add_argument("--calibration", type=Path, metavar="F", help="a calibration that 'sbplan refine' wrote")


def _add_restrictions(parser: argparse.ArgumentParser) -> None:
    """Which plans come into question."""
    parser.add_argument("--pin", type=Path, metavar="F", help="a TOML file that fixes parts of the plan")
    parser.add_argument(
        "--for",
        dest="trainer",
        choices=TRAINERS,
        metavar="TRAINER",
        help="only plans that this trainer's configuration can say, and what that costs: " + ", ".join(TRAINERS),
    )
    parser.add_argument(
        "--fit-probability",
        type=fit_probability,
        metavar="P",
        help="only plans that fit into memory with this probability, by how far predictions were off on runs that they "
        "had not seen: as the trainer of --for holds them (0.5 unless given), else by the margin of systems never seen",
    )
    parser.add_argument(
        "--deduce",
        choices=DEDUCTIONS,
        metavar="RULE",
        help=f"deduce signatures op by op instead of searching for the best: {', '.join(DEDUCTIONS)}",
    )


def _add_effort(parser: argparse.ArgumentParser) -> None:
    """How long the search goes on, and what it looks at."""
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=TIME_LIMIT_S,
        metavar="S",
        help="stop solving after so many seconds with the best plan so far (default: %(default)g); where the pins "
        "leave one candidate, an eighth of that goes into improving its plan",
    )
    parser.add_argument(
        "--gap",
        type=share,
        default=GAP,
        metavar="G",
        help="leave out configurations whose bound is not better by more than this part of the best objective "
        "(default: %(default)g); on few devices, the rest of the gap is closed within a tenth of the time limit",
    )
    parser.add_argument(
        "--no-incumbents",
        action="store_true",
        help="put no rule-based plans (data parallel, Megatron's) beside those that are searched for",
    )


def run(args: argparse.Namespace) -> int:
    """Search, write the plan, print; times count from here, imports included."""
    started, budget = time.perf_counter(), Budget.of(args.time_limit)
    if args.cluster is not None and args.cluster.partition(":")[0] == "local":
        from executor.supervision.environment import rank_environment

        rank_environment()  # a rank computes with one thread, so it is measured with one

    from experiments.command.stopping import exit_code, stopping
    from experiments.explanation.certainty import SHARE, best_document, best_text, certainty_of_search
    from experiments.figures.picture import check_format
    from experiments.planning.answer import document, summary, without_plan
    from experiments.planning.prices import simulated_step
    from experiments.planning.training_cost import cost_text, steps_of, training_cost
    from experiments.studies.job_failures import read_failure_rates, size_of
    from experiments.trainers.trainer_search import answer_for, limited_budget, trainer_document, trainer_text
    from strategy.plan.plan import write_plan
    from strategy.search.search import search

    clusters, rates = clusters_of(args), read_failure_rates(args)
    check_output_path(args.out, "--out")
    check_output_path(args.figure, "--figure")
    if args.figure is not None and len(clusters) == 1:
        raise InputError("one number of GPUs is no figure", where="--figure", expected="a range of --gpus, as 64..1024")
    check_format(args.figure)
    if len(clusters) > 1:
        return compare_counts(args, clusters, rates, started, budget)
    make_folder(args.dump_passes, "--dump-passes")
    asked = request_of(args, clusters[0])
    request, calibration = asked.request, asked.calibration
    if args.tokens is not None:
        steps_of(size_of(request), args.tokens)  # refuses too few of them before the search
    try:
        with progress() as watch, clean_stdout(), stopping() as stopped_by:
            limited = budget.share(1 - SHARE) if request.pins.trainer is None else limited_budget(budget)
            result = search(request, simulate=simulated_step, budget=limited, watch=watch)
            rest = Budget.of(0.0) if result.interrupted else budget
            answer = None if request.pins.trainer is None else answer_for(request, result, rest, asked.without)
    except InfeasibleError as error:
        if args.json:
            emit(without_plan(Status.INFEASIBLE, request, started) | {"smallest_limit_bytes": error.smallest_limit})
        raise
    except OutOfTimeError:
        if args.json:
            emit(without_plan(Status.LIMIT, request, started))
        raise
    write_plan(result.plan, args.out)
    if args.dump_passes is not None:
        dump_passes(result.plan, args.dump_passes)
    best = certainty_of_search(result, calibration, args.time_limit)
    found = document(result, args.out, calibration, search_time_s=time.perf_counter() - started) | best_document(best)
    said = f"{summary(result, args.out)}\n{best_text(best)}"
    if answer is not None:
        found |= {"trainer": trainer_document(result.plan, answer)}
        said += f"\n{trainer_text(result.plan, answer)}"
    if args.tokens is not None:
        cost = training_cost(size_of(request), args.tokens, result.plan.claims.step_time_s, rates)
        found |= {"training": dataclasses.asdict(cost)}
        said += f"\n{cost_text(cost)}" + ("" if rates is None else f"\n{rates.text(size_of(request))}")
    if args.json:
        emit(found)
    say(said)
    if result.interrupted:
        return exit_code(stopped_by)
    return EXIT_LIMIT if result.status == Status.LIMIT else 0


def compare_counts(
    args: argparse.Namespace, clusters: list[Cluster], rates: FailureRates | None, started: float, budget: Budget
) -> int:
    """Bound every count of GPUs, search those on the front, write a plan of each, print."""
    from experiments.command.stopping import exit_code, stopping
    from experiments.explanation.certainty import ALONE, certainty_of_search
    from experiments.planning.gpu_counts import answered, overall, table, without_others
    from experiments.planning.prices import simulated_step
    from experiments.studies.job_failures import size_of
    from strategy.plan.plan import write_plan
    from strategy.search.search import search

    asked = [request_of(args, cluster) for cluster in clusters]
    requests, calibrations = [one.request for one in asked], [one.calibration for one in asked]
    answers: list[CountAnswer] = []
    counts: list[dict[str, object]] = []
    with progress() as watch, clean_stdout(), stopping() as stopped_by:

        def solve(request: Request, part: Budget) -> SearchResult:
            return search(request, simulate=simulated_step, budget=part, watch=watch)

        for one in answered(requests, args.tokens, rates, solve, budget):
            best: Certainty | Unknown = ALONE
            if one.result is not None:
                write_plan(one.result.plan, _path_of(args.out, one))
                best = certainty_of_search(one.result, calibrations[0], args.time_limit / len(clusters))
            counts.append(_count_document(one, args.out, calibrations[0], best))
            answers.append(without_others(one))
    status = overall(answers)
    if args.json:
        emit({"status": status, "gpu_counts": counts, "search_time_s": time.perf_counter() - started})
    say(table(answers) + ("" if rates is None else f"\n{rates.text(size_of(requests[0]))}"))
    if args.figure is not None:
        from experiments.figures.counts_figure import draw

        draw(answers, args.figure)
    if any(one.result is not None and one.result.interrupted for one in answers):
        return exit_code(stopped_by)
    exits = {Status.INFEASIBLE: InfeasibleError.exit_code, Status.LIMIT: EXIT_LIMIT}
    return exits.get(status, 0)


def _path_of(out: Path, one: CountAnswer) -> Path:
    """`plan.json` -> `plan-64.json`."""
    return out.with_name(f"{out.stem}-{one.request.devices}{out.suffix}")


def _count_document(
    one: CountAnswer, out: Path, calibration: Calibration | None, best: Certainty | Unknown
) -> dict[str, object]:
    """What JSON has of one count: `bound` is null where nothing fits, `search` where there was none."""
    from experiments.explanation.certainty import best_document
    from experiments.planning.answer import document
    from strategy.plan.plan import config_document

    bound = search = None
    if one.bound is not None and one.bound_s is not None and one.config is not None:
        rate = one.bound.tokens / one.bound.steps / one.bound_s
        figures = {"step_time_s": one.bound_s, "tokens_per_s": rate, "config": config_document(one.config)}
        bound = figures | {"training": dataclasses.asdict(one.bound)}
    if one.result is not None and one.cost is not None:
        search = document(one.result, _path_of(out, one), calibration, search_time_s=one.result.search_time_s)
        search |= {"training": dataclasses.asdict(one.cost)} | best_document(best)
    cluster = one.request.cost.cluster
    status = {"status": one.status, "gpus": cluster.devices, "cluster": cluster.name}
    return status | {"bound": bound, "search": search}


def dump_passes(plan: Plan, folder: Path) -> None:
    """Write the plan's graph after every pass, a file each."""
    from strategy.passes.dump import PassDump
    from strategy.passes.planned import planned_graph

    planned_graph(plan.model, plan.training, plan.config, PassDump(folder))


@contextmanager
def progress() -> Iterator[Watch | None]:
    """A line on stderr that says which candidate is being solved, the bound and the best, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as line:

        def watch(number: int, count: int, config: PlanConfig, bound_ns: int, best_ns: int | None) -> None:
            line.update(f"{number + 1} of {count}: {progress_text(config, bound_ns, best_ns)}")

        yield watch


def progress_text(config: PlanConfig, bound_ns: int, best_ns: int | None) -> str:
    """What is being solved, and what is known of the step by then."""
    from experiments.planning.config_text import degrees
    from strategy.base.units import format_seconds

    best = "none yet" if best_ns is None else format_seconds(best_ns / 1e9)
    return f"{degrees(config)}; bound {format_seconds(bound_ns / 1e9)}, best {best}"
