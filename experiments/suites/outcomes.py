"""Outcomes: what an experiment finds, as the summary that its run keeps; a function per kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.suites.experiment import (
    BaselineExperiment,
    ExchangeExperiment,
    Experiment,
    FrameworkExperiment,
    LoopExperiment,
    MegatronExperiment,
    PipelineExperiment,
    PredictionExperiment,
    PublishedExperiment,
    SearchExperiment,
)
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError, did_you_mean

Summary = Mapping[str, object]
BYTES_PER_STASH = 4
"""Of a micro-batch in a bare pipeline (`simulator.pipelines`)."""
FORWARD_NS = 12_000
"""Of a stage, in a bare pipeline: divisible by all numbers of laps."""
KEPT_OF_SEARCH = (
    *("status", "step_time_s", "objective_s", "lower_bound_s", "gap", "search_time_s", "config", "tokens_per_s"),
    *("mfu", "hfu", "plan_hash", "extrapolated"),
)
"""Of the document of a search (`sbplan search --json`)."""


def outcome(experiment: Experiment, folder: Path) -> Summary:
    """Do an experiment; files that belong to its run are written into `folder`.

    Raises:
        SbplanError: it cannot be done.
    """
    return _OUTCOMES[type(experiment)](experiment, folder)


def _search(experiment: SearchExperiment, folder: Path) -> Summary:
    from experiments.planning.answer import document
    from experiments.planning.pins import pins_of
    from experiments.planning.prices import KeptSimulations
    from experiments.planning.settings import read_training
    from strategy.base.budget import Budget
    from strategy.cost.cost import CostModel
    from strategy.hardware.presets import find_cluster
    from strategy.models import find_preset
    from strategy.plan.plan import write_plan
    from strategy.search.search import search
    from strategy.space.request import Request

    preset, cluster = find_preset(experiment.model, sequence=experiment.sequence), find_cluster(experiment.cluster)
    training = read_training(experiment.global_batch, experiment.training, bf16=cluster.device.has_bf16)
    pins = pins_of({"config": dict(experiment.pins)}, f"experiment {experiment.name}")
    limit = cluster.largest_memory_bytes
    request = Request(experiment.model, preset.model, training, CostModel(cluster, {}), limit, pins=pins)
    given = {"gpus": cluster.devices, "memory_limit_bytes": limit, "parameters": preset.model.parameters}
    kept = KeptSimulations()
    try:
        found = search(request, simulate=kept, budget=Budget.of(experiment.time_limit_s))
    except InfeasibleError as error:
        return given | {"status": "infeasible", "why": str(error)}
    except OutOfTimeError as error:
        return given | {"status": "limit", "why": str(error)}
    write_plan(found.plan, folder / "plan.json")
    said = document(found, Path("plan.json"), None, search_time_s=found.search_time_s)
    simulated = kept.of(found.plan)
    return given | {
        **{key: said[key] for key in KEPT_OF_SEARCH},
        "peak_memory_bytes": max(found.plan.claims.peak_memory_bytes),
        "idle_share": simulated.idle_share,
        "exposed_communication_s": simulated.exposed_communication_s,
    }


def _baselines(experiment: BaselineExperiment, _folder: Path) -> Summary:
    from experiments.bench.joint_bench import compare
    from experiments.bench.joint_problems import JointProblem
    from strategy.hardware.presets import find_cluster
    from strategy.models import find_preset

    model = find_preset(experiment.model, sequence=experiment.sequence).model
    cluster = find_cluster(experiment.cluster)
    problem = JointProblem(experiment.name, model, cluster, experiment.global_batch, frozenset())
    return compare(problem, experiment.time_limit_s).document()


def _pipeline(experiment: PipelineExperiment, _folder: Path) -> Summary:
    from simulator.pipelines import pipeline
    from simulator.simulate import simulate
    from strategy.layout.schedule import Schedule

    schedule = Schedule(experiment.schedule)
    forward_ns = FORWARD_NS // schedule.default_laps
    backward_ns = forward_ns if schedule.splits_backward else 2 * forward_ns
    program = pipeline(
        experiment.stages, experiment.micro_batches, schedule, forward_ns=forward_ns, backward_ns=backward_ns,
        weight_ns=forward_ns if schedule.splits_backward else 0,
    )  # fmt: skip
    found = simulate(program, steps=1)
    laps = schedule.default_laps
    stashes = [nbytes / BYTES_PER_STASH / laps for nbytes in found.peak_memory_bytes]
    return {"idle_share": found.idle_share, "bubble_overhead": found.bubble_overhead, "in_flight": stashes}


def _exchange(experiment: ExchangeExperiment, _folder: Path) -> Summary:
    from simulator.exchange.fabric import tcp_cloud
    from simulator.exchange.systems import SYSTEMS
    from simulator.exchange.training import simulate
    from simulator.exchange.workload import workload
    from strategy.hardware.devices import DEVICES
    from strategy.models import find_model

    step = workload(experiment.model, find_model(experiment.model), experiment.batch, DEVICES["V100-16"])
    fabric = tcp_cloud(experiment.nodes, experiment.gbit_per_s)
    found = {system: simulate(step, fabric, SYSTEMS[system](step, fabric)) for system in experiment.systems}
    return {
        "gpus": fabric.ranks,
        "alone_s": step.compute_ns / 1e9,
        "systems": {
            system: {"step_time_s": one.step_ns / 1e9, "efficiency": one.efficiency} for system, one in found.items()
        },
    }


def _frameworks(_experiment: FrameworkExperiment, _folder: Path) -> Summary:
    from experiments.published.job_figures import framework_steps

    return {"steps": [asdict(one) for one in framework_steps()]}


def _megatron(experiment: MegatronExperiment, _folder: Path) -> Summary:
    from experiments.published.depths import depths, document
    from experiments.published.megatron import TABLE
    from strategy.closed_form.calibration import shipped

    if experiment.job not in TABLE:
        hint = did_you_mean(experiment.job, TABLE)
        raise InputError("no such job", where=f"experiment {experiment.name}: job", got=experiment.job, hint=hint)
    job = TABLE[experiment.job]
    return document(depths(experiment.job, job, shipped())) | {"gpus": job.gpus, "tokens": job.global_batch * job.seq}


def _published(_experiment: PublishedExperiment, _folder: Path) -> Summary:
    from experiments.published.scores import macro
    from experiments.published.validation import validate

    found = validate()
    return {
        "points": [asdict(point) for point in found.points],
        "within": {family: asdict(one) for family, one in found.within.items()},
        "within_macro": macro(found.within.values()),
    }


def _loop(experiment: LoopExperiment, folder: Path) -> Summary:
    from experiments.loop.demo_report import draw
    from experiments.loop.loop import document, run_loop

    found = run_loop(experiment.ranks, folder, blocks=experiment.blocks, steps=experiment.steps, progress=_quiet)
    draw(found, folder)
    return document(found)


def _predictions(experiment: PredictionExperiment, folder: Path) -> Summary:
    from experiments.loop.predictions import document, run_predictions
    from experiments.loop.testbed import Testbed

    testbed = Testbed(experiment.ranks, experiment.nodes, experiment.gbit_per_s, experiment.kernels)
    found = run_predictions(
        testbed, folder, rounds=experiment.rounds, blocks=experiment.blocks, steps=experiment.steps,
        micro_batches=experiment.micro_batches, off=experiment.off, held_out=experiment.held_out, progress=_quiet,
    )  # fmt: skip
    return document(found)


def _quiet(_said: str) -> None:
    """Experiments are told one by one as they end."""


_OUTCOMES: Mapping[type, Callable[[Any, Path], Summary]] = {
    SearchExperiment: _search,
    BaselineExperiment: _baselines,
    PipelineExperiment: _pipeline,
    ExchangeExperiment: _exchange,
    FrameworkExperiment: _frameworks,
    MegatronExperiment: _megatron,
    PublishedExperiment: _published,
    LoopExperiment: _loop,
    PredictionExperiment: _predictions,
}
