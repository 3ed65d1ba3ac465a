"""Simulated plan: a solved candidate as a plan that claims the simulated time of its program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strategy.base.errors import InfeasibleError
from strategy.base.status import Status
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.objective import Priced
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.passes.planned import planned_graph
from strategy.plan.plan import Claims, Plan
from strategy.program.program import Program
from strategy.sbp.placement import Space
from strategy.search.candidate.candidate_solve import Solved
from strategy.search.candidate.candidates import Request


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What the search wants to know of a simulated step."""

    step_time_s: float
    lower_bound_s: float


Simulate = Callable[[Program], SimulatedStep]


def simulated_plan(
    request: Request,
    solved: Solved,
    simulate: Simulate,
    *,
    bound_ns: int | None = None,
    priced: Priced | None = None,
) -> Plan:
    """The plan of a solved candidate, with the simulated time of its program.

    Args:
        request: what is searched for.
        solved: the candidate.
        simulate: gives the simulated time of a program.
        bound_ns: bounds the objective of more than this candidate; without it, the candidate's own bound is claimed.
        priced: the candidate's graph with its prices, where they are known.

    Raises:
        InfeasibleError: its memory, as it is laid out, exceeds the limit, or what it offloads the host's memory.
    """
    training = request.training_with(solved.config)
    tokens = training.global_batch * request.model.tokens_per_sample
    if priced is None:
        graph = planned_graph(request.model, training, solved.config)
        priced = Priced(graph, solved.layout, request.pipeline_of(solved.config), request.cost)
    program = lower_priced(priced, tokens_per_step=tokens, folds=True)
    peaks, host_peaks = memory_nbytes(program), memory_nbytes(program, Space.HOST)
    there = host_memory_bytes(request.cost.cluster)
    if max(host_peaks) > there:
        raise InfeasibleError(
            f"the host does not hold it: {max(host_peaks)} bytes per device needed, {there} are there"
        )
    if max(peaks) > request.memory_limit_bytes:
        needed = f"{max(peaks)} bytes per device needed, {request.memory_limit_bytes} are there"
        raise InfeasibleError(f"the layout does not fit: {needed}", smallest_limit=max(peaks))
    step = simulate(program)
    bound = solved.bound_ns if bound_ns is None else bound_ns
    claims = Claims(
        status=str(Status.OPTIMAL if bound == solved.objective_ns else Status.FEASIBLE),
        objective_s=solved.objective_ns / 1e9,
        lower_bound_s=bound / 1e9,
        gap=max(0.0, (solved.objective_ns / 1e9 - bound / 1e9) / (solved.objective_ns / 1e9)),
        step_time_s=step.step_time_s,
        simulated_lower_bound_s=step.lower_bound_s,
        peak_memory_bytes=peaks,
        peak_host_memory_bytes=host_peaks,
        memory_limit_bytes=request.memory_limit_bytes,
        sent_bytes_per_step=sent_bytes_per_step(program),
    )
    return Plan(
        request.model_name,
        request.model,
        training,
        request.cost.cluster,
        request.cost,
        solved.config,
        solved.layout,
        claims,
    )
