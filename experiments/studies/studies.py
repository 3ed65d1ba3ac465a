"""Studies: what a plan's step would be under a schedule, a staleness or an exchange that plans do not have.

They are simulated and never run. Each stands beside the same step of the same model without what is studied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strategy.base.errors import InputError
from strategy.base.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from experiments.studies.unevenness import Unevenness
    from strategy.cost.cost import CostModel
    from strategy.layout.objective import Priced
    from strategy.plan.plan import Plan

EXCHANGES = ("ddp", "horovod", "byteps", "mxnet", "perseus")
SCHEDULES = ("pipedream", "dualpipe")
STEPS = 40
"""That stale workers are simulated for."""
FILLED = 3
"""Steps after which a pipeline without flush is full, however few micro-batches a step has beside its stages."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A step under a system's exchange of gradients, of which `exposed_s` is not hidden behind compute."""

    system: str
    step_time_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class ExchangeStudy:
    """A step of one GPU alone, and of all under each system."""

    alone_s: float
    systems: tuple[Exchanged, ...]

    def __str__(self) -> str:
        """A line per system, for people."""
        return "\n".join(
            f"{one.system}: {format_seconds(one.step_time_s)} a step, {format_seconds(one.exposed_s)} of it exchange "
            f"(alone {format_seconds(self.alone_s)})"
            for one in self.systems
        )


@dataclass(frozen=True, slots=True)
class ScheduleStudy:
    """A step under a schedule, and under 1F1B with a flush, both of the plan's stages alone (`stage_times`).

    `idle_share` is the share of a step in which a rank idles; `in_flight` says how many micro-batches every rank
    stashes, `parameter_bytes` how much memory the parameters take that it holds.
    """

    schedule: str
    step_time_s: float
    idle_share: float
    flushed_step_time_s: float
    flushed_idle_share: float
    in_flight: tuple[int, ...]
    parameter_bytes: tuple[int, ...]

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"{self.schedule}: {format_seconds(self.step_time_s)} a step, {self.idle_share:.1%} of it idle "
            f"(1F1B of the same stages {format_seconds(self.flushed_step_time_s)}, {self.flushed_idle_share:.1%}); "
            f"at most {max(self.in_flight)} micro-batches in flight, {format_bytes(max(self.parameter_bytes))} of "
            "parameters on a rank"
        )


@dataclass(frozen=True, slots=True)
class StalenessStudy:
    """A step of workers that may lack the updates of `staleness` steps, and of workers that wait for all."""

    staleness: int
    step_time_s: float
    synchronous_step_time_s: float
    parameter_bytes: int

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"staleness {self.staleness}: {format_seconds(self.step_time_s)} a step "
            f"(waiting for all, {format_seconds(self.synchronous_step_time_s)}); "
            f"{format_bytes(self.parameter_bytes)} of parameters on a rank"
        )


Study = ExchangeStudy | ScheduleStudy | StalenessStudy


def exchange_study(plan: Plan, cost: CostModel, systems: Sequence[str]) -> ExchangeStudy:
    """The step of a data-parallel plan under the exchange of each system.

    Raises:
        InputError: the plan does more than data parallelism.
    """
    from simulator.exchange.fabric import cluster_fabric
    from simulator.exchange.planned import planned_workload
    from simulator.exchange.systems import SYSTEMS
    from simulator.exchange.training import simulate

    _check_data_parallel(plan, "--exchange")
    fabric = cluster_fabric(cost.cluster, plan.ranks)
    workload = planned_workload(plan.model_name, _priced(plan, cost), plan.training)
    alone_s = workload.compute_ns / 1e9
    found = ((system, simulate(workload, fabric, SYSTEMS[system](workload, fabric))) for system in systems)
    times = ((system, outcome.step_ns / 1e9) for system, outcome in found)
    return ExchangeStudy(alone_s, tuple(Exchanged(system, step_s, step_s - alone_s) for system, step_s in times))


def schedule_study(plan: Plan, cost: CostModel, schedule: str) -> ScheduleStudy:
    """The stages of a pipelined plan under a schedule.

    Raises:
        InputError: the plan has one stage, or stages of several laps; or it has too few micro-batches for the schedule.
    """
    from simulator.dual_pipe import dual_pipe_program
    from simulator.pipelines import pipeline
    from simulator.simulate import simulate
    from simulator.stage_times import stage_times
    from simulator.stale import pipe_dream_program, pipe_dream_versions

    config = plan.config
    if config.pp == 1 or config.virtual_stages > 1:
        got, hint = f"pp {config.pp}, virtual_stages {config.virtual_stages}", "pin such a plan (search --pin)"
        raise InputError("no pipeline of one lap", where="--schedule", got=got, expected="several stages", hint=hint)
    times, m, count = stage_times(_priced(plan, cost)), config.num_micro_batches, config.pp
    once = _parameter_bytes(plan)
    flushed = simulate(
        pipeline(
            count,
            m,
            "1f1b",
            forward_ns=[each.forward_ns for each in times],
            backward_ns=[each.backward_ns for each in times],
            transfer_ns=[each.message_ns for each in times],
            update_ns=[each.update_ns for each in times],
        )
    )
    if schedule == "dualpipe":
        found = simulate(dual_pipe_program(times, m))
        step_s, updated = found.step_time_s, 1
        held = [own + other for own, other in zip(once, reversed(once), strict=True)]
    else:
        # Whatever fills the pipeline is the same in both runs; what one has more is steps of a full one.
        before, found = (simulate(pipe_dream_program(times, n * m), steps=1) for n in (FILLED, FILLED + 1))
        step_s, updated = found.makespan_s - before.makespan_s, m
        held = [versions * nbytes for versions, nbytes in zip(pipe_dream_versions(count), once, strict=True)]
    passes = 2 if schedule == "dualpipe" else 1
    busy_ns = sum(m * (each.forward_ns + each.backward_ns) + passes * updated * each.update_ns for each in times)
    return ScheduleStudy(
        schedule=schedule,
        step_time_s=step_s,
        idle_share=1 - busy_ns / 1e9 / count / step_s,
        flushed_step_time_s=flushed.step_time_s,
        flushed_idle_share=flushed.idle_share,
        in_flight=tuple(nbytes // 4 for nbytes in found.peak_memory_bytes),
        parameter_bytes=tuple(held),
    )


def staleness_study(plan: Plan, cost: CostModel, staleness: int, uneven: Unevenness) -> StalenessStudy:
    """The workers of a data-parallel plan, of which some may be slow, at a staleness.

    Raises:
        InputError: the plan does more than data parallelism, or the staleness is negative.
    """
    from simulator.simulate import simulate
    from simulator.stale import stale_workers_program
    from strategy.base.units import to_ns
    from strategy.program.program import ActKind
    from strategy.sbp.tensor import Rate

    _check_data_parallel(plan, "--staleness")
    if uneven.slow_links:
        raise InputError("workers whose links are alike", where="--staleness", hint="leave out --slow-link")
    priced = _priced(plan, cost)
    compute_ns = exchange_ns = 0
    for action, features in zip(priced.arrangement.actions, priced.features, strict=True):
        count = 1 if action.rate is Rate.STEP else plan.config.num_micro_batches
        time_ns = count * to_ns(cost.seconds(features))
        exchange_ns += time_ns if action.kind.is_communication else 0
        compute_ns += time_ns if action.kind is ActKind.COMPUTE else 0
    step_ns = [compute_ns] * plan.ranks

    def seconds(missed: int) -> float:
        workers = stale_workers_program(step_ns, STEPS, min(missed, STEPS), exchange_ns=exchange_ns)
        program, jitter = uneven.applied(workers)
        return simulate(program, steps=1, jitter=jitter).makespan_s / STEPS

    return StalenessStudy(staleness, seconds(staleness), seconds(0), (staleness + 1) * _parameter_bytes(plan)[0])


def _priced(plan: Plan, cost: CostModel) -> Priced:
    return plan.priced if cost == plan.cost else replace(plan.priced, cost=cost)


def _check_data_parallel(plan: Plan, flag: str) -> None:
    config = plan.config
    if config.dp != plan.ranks or config.zero_stage:
        got = f"dp {config.dp} of {plan.ranks} ranks, zero_stage {config.zero_stage}"
        expected = "every rank a replica of the whole model"
        hint = "pin dp, and zero_stage = 0 (search --pin)"
        raise InputError("not a data-parallel plan", where=flag, got=got, expected=expected, hint=hint)


def _parameter_bytes(plan: Plan) -> list[int]:
    """By stage, bytes of the parameters of its fullest rank."""
    from strategy.graph.graph import Phase, Role
    from strategy.graph.signature import piece_specs

    found = [0] * plan.config.pp
    for held in plan.priced.arrangement.tensors:
        value, mesh = plan.graph.values[held.value], plan.layout.stages.placements[held.stage].mesh
        passes = any(op.phase is not Phase.UPDATE for op in plan.graph.consumers[held.value])
        if value.role is Role.VARIABLE and held.name == held.value and passes:
            found[held.stage] += piece_specs([value.spec], [held.layout], mesh)[0].nbytes
    return found
