"""Price a trainer's configuration: step time, memory, what was not understood, and what the search would do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command.arguments import add_failures, add_json, positive_int, seconds, tokens
from experiments.command.console import emit, say
from experiments.command.outputs import clean_stdout
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError

if TYPE_CHECKING:
    from experiments.trainers.trainer_prices import PricedTraining, SearchedInstead
    from strategy.hardware.cluster import Cluster
    from strategy.trainers.priced import PricedMachine, TrainerPrice
    from strategy.trainers.read import ReadConfiguration

FROM = ("megatron", "torchtitan", "deepspeed", "nemo", "megatron-bridge", "nanotron", "llm-foundry")
TIME_LIMIT_S = 60.0
_PRECISIONS = {"single": "fp32", "eight": "FP8", "row8": "FP8 by rows", "mx8": "MXFP8", "four": "FP4"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan price` takes."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a trainer's configuration: TOML, YAML, JSON, or the arguments of a command line (.sh, .txt)",
    )
    parser.add_argument("--from", dest="trainer", choices=FROM, default="", help="whose it is (default: by its keys)")
    parser.add_argument(
        "--model",
        default="",
        metavar="MODEL",
        help="what is trained, where the file names no model: a preset, a config.json, or for DeepSpeed's JSON the "
        "arguments of the script that calls it",
    )
    parser.add_argument("--seq", type=positive_int, default=0, metavar="N", help="tokens per sample, likewise")
    parser.add_argument("--cluster", metavar="CLUSTER", help="a TOML file, or a preset with a node count (dgx-h100:32)")
    parser.add_argument("--gpus", type=positive_int, metavar="N", help="instead: so many GPUs (default: the file's)")
    parser.add_argument("--gpu", metavar="NAME", help="of this kind: h100, a100-80, b200, ...")
    parser.add_argument("--tokens", type=tokens, metavar="N", help="tell how long so many take: 15T, 300B, 1e12")
    add_failures(parser)
    parser.add_argument("--no-search", action="store_true", help="leave out what the search would do instead")
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=TIME_LIMIT_S,
        metavar="S",
        help="of that search (default: %(default)g)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the file, price it, search, print."""
    from experiments.studies.job_failures import read_failure_rates
    from experiments.trainers.trainer_prices import (
        priced_training,
        searched,
        size_of_job,
        table,
        told,
        why_not_searched,
    )
    from strategy.base.budget import Budget
    from strategy.closed_form.calibration import shipped
    from strategy.trainers.priced import priced
    from strategy.trainers.read import read_configuration

    rates = read_failure_rates(args)
    found = read_configuration(args.file, trainer=args.trainer, model=args.model, sequence=args.seq, gpu=args.gpu or "")
    machine, cluster = machine_for(args, found)
    price = priced(found.trained, machine, shipped())
    cost = None if args.tokens is None else priced_training(price, args.tokens, rates)
    alternative, left_out = None, "--no-search"
    if not args.no_search:
        if cluster is None:
            left_out = f"no preset has nodes of {args.gpu}"
        else:
            try:
                with clean_stdout():
                    budget = Budget.of(args.time_limit)
                    alternative = searched(found.trained, price, cluster, shipped(), budget)
            except (InputError, InfeasibleError, OutOfTimeError) as error:
                left_out = why_not_searched(error)
    if args.json:
        emit({"file": str(args.file), **document(found, price, alternative, None if alternative else left_out, cost)})
    say(f"{args.file}: {_summary(found, machine)}")
    for line in table(price):
        say(line)
    if cost is not None:
        say(f"{cost}" + ("" if rates is None else f"\n{rates.text(size_of_job(price.job))}"))
    _say_keys(found)
    say(told(price, alternative) if alternative else f"search: left out: {left_out}")
    return 0


def machine_for(args: argparse.Namespace, found: ReadConfiguration) -> tuple[PricedMachine, Cluster | None]:
    """On what it is priced."""
    from experiments.machine.machine import find_machine
    from experiments.trainers.trainer_prices import cluster_of, machine_of
    from strategy.trainers.priced import machine_of_cluster

    if args.cluster is not None:
        if args.gpus or args.gpu:
            raise InputError("--cluster and --gpus both say what there is", hint="leave one of them out")
        cluster = find_machine(args.cluster)
        return machine_of_cluster(cluster), cluster
    gpus = args.gpus or found.trained.gpus
    if args.gpu is None or not gpus:
        expected = "--cluster CLUSTER, or --gpus N with --gpu NAME"
        raise InputError("nothing says on what it trains", expected=expected, hint="see 'sbplan price --help'")
    known = cluster_of(args.gpu, gpus)
    if known is None:
        return machine_of(args.gpu, gpus, found.trained.gpus_per_node), None
    return machine_of_cluster(known), known


def document(
    found: ReadConfiguration,
    price: TrainerPrice,
    alternative: SearchedInstead | None,
    left_out: str | None,
    cost: PricedTraining | None,
) -> dict[str, Any]:
    """The JSON document of a price."""
    import dataclasses

    from strategy.plan.plan import config_document

    search = None
    if alternative is not None:
        search = {
            "step_time_s": alternative.price.step_time_s,
            "lo_s": alternative.price.lo_s,
            "hi_s": alternative.price.hi_s,
            "config": config_document(alternative.config),
            "fits": alternative.price.fits,
            "simulated_s": alternative.simulated_s,
            "saved_s": dict(alternative.saved_s),
        }
    read = dataclasses.asdict(found.trained) | {"micro_batch": price.job.micro_batch}
    return {
        "trainer": str(found.trained.trainer),
        "step_time_s": price.step_time_s,
        "lo_s": price.lo_s,
        "hi_s": price.hi_s,
        "tokens_per_s_per_gpu": price.tokens_per_s_per_gpu,
        "mfu": price.mfu,
        "gpus": price.job.gpus,
        "gpu": price.job.device.name,
        "global_batch": price.job.global_batch,
        "peak_memory_bytes": price.peak_memory_bytes,
        "memory_limit_bytes": price.limit_bytes,
        "memory_margin_bytes": price.margin_bytes,
        "fits": price.fits,
        "fit_probability": price.fit_probability,
        "memory_by_cause": dict(price.memory_bytes),
        "time_by_cause_s": dict(price.causes_s),
        "extrapolated": list(price.extrapolated),
        "model": read.pop("model"),
        "read": read,
        "defaults": dict(found.defaults),
        "assumed": list(found.assumed),
        "unused": dict(found.unused),
        "unpriced": dict(found.unpriced),
        "not_understood": list(found.not_understood),
        "search": search,
        "search_left_out": left_out,
        "training": None if cost is None else cost.document(),
    }


def _summary(found: ReadConfiguration, machine: PricedMachine) -> str:
    from strategy.trainers.trained import micro_batch_of

    read = found.trained
    dp = machine.gpus // read.replica_gpus
    names = {"dp": dp, "tp": read.tp, "pp": read.pp, "cp": read.cp, "ep": read.ep, "virtual": read.virtual}
    said = ", ".join(f"{name} {degree}" for name, degree in names.items() if degree > 1 or name == "dp")
    groups = f" in {read.replicas} groups" if read.replicas > 1 else ""
    layers = f" of {read.recompute_layers} layers" if read.recompute_layers else ""
    at_once = f"micro-batches of {micro_batch_of(read, machine.gpus)}"
    again = "" if read.recompute == "none" else f", {read.recompute} recompute{layers}"
    precision = {"half": read.half} | _PRECISIONS
    return (
        f"{read.trainer}, {read.model.layers} layers of {read.model.width}, {machine.gpus} {machine.device.name}: "
        f"{said}, {at_once}, ZeRO {read.zero}{groups}, {precision[read.precision]}{again}"
    )


def _say_keys(found: ReadConfiguration) -> None:
    """Defaults, assumptions, and keys that the price does not follow; what changes nothing is counted."""
    if found.defaults:
        say("defaults: " + ", ".join(f"{key} {value}" for key, value in found.defaults.items()))
    for line in found.assumed:
        say(f"assumed: {line}")
    if found.unpriced:
        say("not priced: " + ", ".join(f"{key} ({why})" for key, why in found.unpriced.items()))
    if found.not_understood:
        say("not understood: " + ", ".join(found.not_understood))
    say(f"{len(found.unused)} keys change neither time nor memory (--json lists them)")
