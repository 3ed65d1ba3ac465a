"""Request: what the arguments of a search ask for, and on which clusters."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strategy.base.errors import InputError

TIME_LIMIT_S = 120.0
GAP = 0.01

if TYPE_CHECKING:
    from strategy.cost.calibrate import Calibration
    from strategy.hardware.cluster import Cluster
    from strategy.space.request import Request
    from strategy.space.trainer_space import TargetTrainer


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for on a cluster.

    Attributes:
        request: the question itself.
        calibration: what it is priced by, if not by data sheets.
        without: of the model's loss, in words, what the trainer of --for does not train with.
    """

    request: Request
    calibration: Calibration | None
    without: tuple[str, ...] = ()


def clusters_of(args: argparse.Namespace) -> list[Cluster]:
    """The cluster that the arguments name, or one for every count of GPUs.

    Raises:
        InputError: they name none, or both a cluster and a number of GPUs, or a range without what it is compared by.
    """
    from experiments.machine.machine import find_machine
    from experiments.planning.gpu_counts import clusters_of_gpus

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


def request_of(args: argparse.Namespace, cluster: Cluster) -> Asked:
    """What the arguments ask for on a cluster."""
    from experiments.planning.pins import read_pins
    from experiments.planning.prices import read_calibration_of
    from experiments.planning.settings import read_training
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
    without: tuple[str, ...] = ()
    if args.trainer is not None:
        from strategy.space.trainer_space import TargetTrainer

        request, without = for_trainer(request, TargetTrainer(args.trainer))
    if args.fit_probability is not None:
        request = with_fit(request, args.fit_probability)
    return Asked(request, calibration, without)


def with_fit(request: Request, probability: float) -> Request:
    """The request for plans that fit with a probability, as their trainer holds them, or else by their own count.

    Raises:
        InputError: devices differ.
    """
    from strategy.plan.plan import FitClaim, most_memory_bytes

    cluster = request.cost.cluster
    if cluster.groups:
        expected = "nodes of one type"
        raise InputError("memory is kept free on alike devices", where=cluster.name, expected=expected)
    limit = most_memory_bytes(cluster, FitClaim(probability, request.pins.trainer))
    return replace(request, memory_limit_bytes=limit, pins=replace(request.pins, fit_probability=probability))


def for_trainer(request: Request, trainer: TargetTrainer) -> tuple[Request, tuple[str, ...]]:
    """The request within a trainer's limits; and what of the model's loss the trainer leaves out, in words.

    Raises:
        InputError: the trainer has no words for the model, or another one is pinned.
    """
    from strategy.trainers.trained import TrainerName
    from strategy.trainers.write import as_trained_by, check_model

    if request.pins.trainer not in (None, trainer):
        raise InputError("two trainers", got=f"--for {trainer}, and trainer = {request.pins.trainer} pinned")
    if request.cost.cluster.groups:
        expected = "nodes of one type"
        raise InputError("trainers cut layers evenly", where=request.cost.cluster.name, expected=expected)
    check_model(request.model, TrainerName(trainer))
    model, without = as_trained_by(request.model, TrainerName(trainer))
    return replace(request, model=model, pins=replace(request.pins, trainer=trainer)), without
