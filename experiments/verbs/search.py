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

from experiments.arguments import (
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
from experiments.console import emit, say
from experiments.exit_codes import EXIT_LIMIT
from experiments.outputs import check_output_path, clean_stdout, make_folder
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError
from strategy.base.status import Status

if TYPE_CHECKING:
    from experiments.explanation.certainty import Certainty
    from experiments.gpu_counts import CountAnswer
    from experiments.job_failures import FailureRates
    from strategy.cost.calibrate import Calibration
    from strategy.hardware.cluster import Cluster
    from strategy.layout.config import PlanConfig
    from strategy.plan.plan import Plan
    from strategy.search.search_result import SearchResult, Watch
    from strategy.space.request import Request

DEDUCTIONS = ("match-all", "match-most", "least-cost")
TIME_LIMIT_S = 120.0
GAP = 0.01


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
        help="keep memory free so that the plan fits with this probability, by how far predictions of memory were off "
        "on runs that they had not seen: those of the trainer of --for, else of systems of which none was seen",
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
        "leave one candidate, a third of that goes into improving its plan",
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

    from experiments.explanation.certainty import certainty_of_search
    from experiments.gpu_counts import cost_text, steps_of, training_cost
    from experiments.job_failures import read_failure_rates
    from experiments.memory_margin import found_with
    from experiments.prices import simulated_step
    from experiments.stopping import exit_code, stopping
    from experiments.trainer_search import LIMITED_SHARE, answer_for, trainer_document, trainer_text
    from experiments.verbs.simulate import check_format
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
    request, calibration = request_of(args, clusters[0])
    if args.tokens is not None:
        steps_of(request, args.tokens)  # refuses too few of them before the search
    try:
        with progress() as watch, clean_stdout(), stopping() as stopped_by:
            limited = budget if request.pins.trainer is None else budget.share(LIMITED_SHARE)

            def solve(one: Request, part: Budget) -> SearchResult:
                return search(one, simulate=simulated_step, budget=part, watch=watch)

            result = found_with(request, args.fit_probability, solve, limited)
            rest = Budget.of(0.0) if result.interrupted else budget
            answer = None if request.pins.trainer is None else answer_for(request, result.plan, rest)
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
    certainty = certainty_of_search(result, calibration, args.time_limit)
    found = document(result, args.out, calibration, certainty, search_time_s=time.perf_counter() - started)
    said = summary(result, args.out)
    if certainty is not None:
        said += f"\n{certainty}"
    if answer is not None:
        found |= {"trainer": trainer_document(result.plan, answer)}
        said += f"\n{trainer_text(result.plan, answer)}"
    if args.tokens is not None:
        cost = training_cost(request, args.tokens, result.plan.claims.step_time_s, rates)
        found |= {"training": dataclasses.asdict(cost)}
        said += f"\n{cost_text(cost)}" + ("" if rates is None else f"\n{rates.text(request)}")
    if args.json:
        emit(found)
    say(said)
    if result.interrupted:
        return exit_code(stopped_by)
    return EXIT_LIMIT if result.status == Status.LIMIT else 0


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """The cluster that the arguments name, or one for every count of GPUs.

    Raises:
        InputError: they name none, or both a cluster and a number of GPUs, or a range without what it is compared by.
    """
    from experiments.gpu_counts import clusters_of_gpus
    from experiments.machine import find_machine

    if args.cluster is not None and (args.gpus or args.gpu):
        raise InputError("--cluster and --gpus both say what there is", hint="leave one of them out")
    if args.cluster is not None:
        return [find_machine(args.cluster)]
    if args.gpus is None or args.gpu is None:
        needed = "--cluster CLUSTER, or --gpus N[..M] with --gpu NAME"
        raise InputError("nothing says what to train on", expected=needed, hint="see 'sbplan search --help'")
    clusters = clusters_of_gpus(args.gpu, *args.gpus)
    if len(clusters) > 1 and args.tokens is None:
        raise InputError("counts of GPUs are compared by days and GPU-hours", hint="give --tokens too")
    if len(clusters) > 1 and args.dump_passes is not None:
        raise InputError("--dump-passes writes the passes of one plan", hint="give one number of --gpus")
    return clusters


def compare_counts(
    args: argparse.Namespace, clusters: list[Cluster], rates: FailureRates | None, started: float, budget: Budget
) -> int:
    """Bound every count of GPUs, search those on the front, write a plan of each, print."""
    from experiments.explanation.certainty import certainty_of_search
    from experiments.gpu_counts import answered, overall, table, without_others
    from experiments.memory_margin import found_with
    from experiments.prices import simulated_step
    from experiments.stopping import exit_code, stopping
    from strategy.plan.plan import write_plan
    from strategy.search.search import search

    requests, calibrations = zip(*(request_of(args, cluster) for cluster in clusters), strict=True)
    answers: list[CountAnswer] = []
    counts: list[dict[str, object]] = []
    with progress() as watch, clean_stdout(), stopping() as stopped_by:

        def search_once(request: Request, part: Budget) -> SearchResult:
            return search(request, simulate=simulated_step, budget=part, watch=watch)

        def solve(request: Request, part: Budget) -> SearchResult:
            return found_with(request, args.fit_probability, search_once, part)

        for one in answered(requests, args.tokens, rates, solve, budget):
            certainty = None
            if one.result is not None:
                write_plan(one.result.plan, _path_of(args.out, one))
                certainty = certainty_of_search(one.result, calibrations[0], args.time_limit / len(clusters))
            counts.append(_count_document(one, args.out, calibrations[0], certainty))
            answers.append(without_others(one))
    status = overall(answers)
    if args.json:
        emit({"status": status, "gpu_counts": counts, "search_time_s": time.perf_counter() - started})
    say(table(answers) + ("" if rates is None else f"\n{rates.text(requests[0])}"))
    if args.figure is not None:
        from experiments.counts_figure import draw

        draw(answers, args.figure)
    if any(one.result is not None and one.result.interrupted for one in answers):
        return exit_code(stopped_by)
    exits = {Status.INFEASIBLE: InfeasibleError.exit_code, Status.LIMIT: EXIT_LIMIT}
    return exits.get(status, 0)


def _path_of(out: Path, one: CountAnswer) -> Path:
    """`plan.json` -> `plan-64.json`."""
    return out.with_name(f"{out.stem}-{one.request.devices}{out.suffix}")


def _count_document(
    one: CountAnswer, out: Path, calibration: Calibration | None, certainty: Certainty | None
) -> dict[str, object]:
    """What JSON has of one count: `bound` is null where nothing fits, `search` where there was none."""
    from strategy.plan.plan import config_document

    bound = search = None
    if one.bound is not None and one.bound_s is not None and one.config is not None:
        rate = one.bound.tokens / one.bound.steps / one.bound_s
        figures = {"step_time_s": one.bound_s, "tokens_per_s": rate, "config": config_document(one.config)}
        bound = figures | {"training": dataclasses.asdict(one.bound)}
    if one.result is not None and one.cost is not None:
        path, search_time_s = _path_of(out, one), one.result.search_time_s
        search = document(one.result, path, calibration, certainty, search_time_s=search_time_s)
        search |= {"training": dataclasses.asdict(one.cost)}
    cluster = one.request.cost.cluster
    status = {"status": one.status, "gpus": cluster.devices, "cluster": cluster.name}
    return status | {"bound": bound, "search": search}


def dump_passes(plan: Plan, folder: Path) -> None:
    """Write the plan's graph after every pass, a file each."""
    from strategy.passes.dump import PassDump
    from strategy.passes.planned import planned_graph

    planned_graph(plan.model, plan.training, plan.config, PassDump(folder))


def request_of(args: argparse.Namespace, cluster: Cluster) -> tuple[Request, Calibration | None]:
    """What the arguments ask for on a cluster, and the calibration that it is priced by."""
    from experiments.pins import read_pins
    from experiments.prices import read_calibration_of
    from experiments.settings import read_training
    from strategy.cost.cost import CostModel
    from strategy.models import find_preset, model_name
    from strategy.space.deduce import Deduction
    from strategy.space.request import Pins, Request

    preset = find_preset(args.model, sequence=args.seq)
    pins = Pins() if args.pin is None else read_pins(args.pin)
    calibration = None if args.calibration is None else read_calibration_of(cluster, args.calibration)
    request = Request(
        model_name=model_name(args.model),
        model=preset.model,
        training=read_training(args.global_batch or preset.global_batch, args.training, bf16=cluster.device.has_bf16),
        cost=CostModel(cluster, {}) if calibration is None else calibration.cost_model(cluster),
        memory_limit_bytes=cluster.largest_memory_bytes,
        pins=pins,
        deduction=None if args.deduce is None else Deduction(args.deduce),
        gap=args.gap,
        incumbents=not args.no_incumbents,
    )
    if args.trainer is not None:
        from experiments.trainer_search import for_trainer
        from strategy.space.trainer_space import TargetTrainer

        request = for_trainer(request, TargetTrainer(args.trainer))
    return request, calibration


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
    from strategy.base.units import format_seconds

    best = "none yet" if best_ns is None else format_seconds(best_ns / 1e9)
    return f"{degrees(config)}; bound {format_seconds(bound_ns / 1e9)}, best {best}"


def degrees(config: PlanConfig) -> str:
    """A configuration in one phrase."""
    from strategy.base.units import format_bytes

    laps = f" x {config.virtual_stages}" if config.virtual_stages > 1 else ""
    recomputes = "" if config.recompute == "none" else f", {config.recompute} recompute"
    offloads = "" if config.offload == "none" else f", offload of {config.offload}"
    runs = f", layers {' + '.join(map(str, config.runs))}" if config.runs else ""
    order = f", stages on shares {' '.join(map(str, config.stage_order))} of the ranks" if config.stage_order else ""
    streams = f" over {config.exchange_streams} streams" if config.exchange_streams > 1 else ""
    buckets = f", gradients in buckets of {format_bytes(config.bucket_bytes)}{streams}" if config.bucket_bytes else ""
    strides = f", strides {' '.join(map(str, config.strides))}" if config.strides else ""
    experts = f", ep {config.ep}" if config.ep > 1 else ""
    return (
        f"dp {config.dp}{experts}, tp {config.tp}, cp {config.cp}, pp {config.pp}{laps}, "
        f"{config.num_micro_batches} micro-batches of {config.micro_batch} ({config.schedule})"
        f"{runs}{order}{strides}{recomputes}{offloads}{buckets}"
    )


def document(
    result: SearchResult,
    path: Path,
    calibration: Calibration | None,
    certainty: Certainty | None,
    *,
    search_time_s: float,
) -> dict[str, object]:
    """The JSON document of a search; `best` is null where nothing else was simulated."""
    from experiments.prices import extrapolated
    from strategy.plan.plan import config_document

    plan, claims = result.plan, result.plan.claims
    mfu, hfu = utilisation(plan)
    return {
        "status": str(result.status),
        "step_time_s": claims.step_time_s,
        "objective_s": claims.objective_s,
        "lower_bound_s": claims.lower_bound_s,
        "gap": claims.gap,
        "simulated_lower_bound_s": claims.simulated_lower_bound_s,
        "search_time_s": search_time_s,
        "config": config_document(plan.config),
        "precision": str(plan.training.precision),
        "parameters": plan.model.parameters,
        "peak_memory_bytes": list(claims.peak_memory_bytes),
        "peak_host_memory_bytes": list(claims.peak_host_memory_bytes),
        "memory_limit_bytes": claims.memory_limit_bytes,
        "fit_probability": None if claims.fit is None else claims.fit.probability,
        "tokens_per_s": plan.tokens_per_step / claims.step_time_s,
        "mfu": mfu,
        "hfu": hfu,
        "runners_up": [
            {"config": config_document(config), "step_time_s": step_time_s} for config, step_time_s in result.runners_up
        ],
        "best": None if certainty is None else certainty.document(),
        "plan": str(path),
        "plan_hash": plan.plan_hash,
        "num_candidates": result.num_candidates,
        "extrapolated": extrapolated(plan, calibration),
    }


def without_plan(status: Status, request: Request, started: float) -> dict[str, object]:
    """The JSON document of a search that found no plan: every key of the contract, null where there is nothing."""
    nothing = ("step_time_s", "objective_s", "lower_bound_s", "gap", "simulated_lower_bound_s", "config")
    figures = ("precision", "peak_memory_bytes", "tokens_per_s", "mfu", "hfu", "best", "plan")
    return {
        "status": status,
        "parameters": request.model.parameters,
        **dict.fromkeys((*nothing, *figures)),
        "search_time_s": time.perf_counter() - started,
        "memory_limit_bytes": request.memory_limit_bytes,
        "runners_up": [],
    }


def utilisation(plan: Plan) -> tuple[float, float]:
    """FLOPs per second over those of the devices' data sheet: the model's, and all that are done."""
    from strategy.lowering.lower import hardware_flop, model_flop

    peak_flop = plan.ranks * plan.peak_flop_per_s * plan.claims.step_time_s
    return model_flop(plan.graph, plan.pipeline) / peak_flop, hardware_flop(plan.graph, plan.pipeline) / peak_flop


def summary(result: SearchResult, path: Path) -> str:
    """The answer in two lines, for people."""
    from strategy.base.units import format_bytes, format_seconds

    plan, claims = result.plan, result.plan.claims
    peak, limit = format_bytes(max(claims.peak_memory_bytes)), format_bytes(claims.memory_limit_bytes)
    if claims.fit is not None:
        limit += f", which fits with probability {claims.fit.probability:g}"
    return (
        f"{path}: {degrees(plan.config)}, precision {plan.training.precision}; "
        f"{format_seconds(claims.step_time_s)} a step, {peak} of {limit}\n"
        f"{result.status}, gap {claims.gap:.2%} (objective {format_seconds(claims.objective_s)}, "
        f"bound {format_seconds(claims.lower_bound_s)}), {result.search_time_s:.1f} s: {result.status.message}"
    )
