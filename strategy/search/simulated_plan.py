"""Simulated plan: a solved candidate as a plan that claims the simulated time of its program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from strategy.graph import Space
from strategy.lowering.arrangement import arrange
from strategy.lowering.lower import lower
from strategy.lowering.memory import peak_memory_bytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.passes.planned import planned_graph
from strategy.plan import Claims, Plan
from strategy.program import Program
from strategy.search.candidates import Request
from strategy.search.verdict import Solved


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What the search wants to know of a simulated step."""

    step_time_s: float
    lower_bound_s: float


Simulate = Callable[[Program], SimulatedStep]


class SearchStatus(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    LIMIT = "limit"


def simulated_plan(request: Request, solved: Solved, simulate: Simulate, *, bound_ns: int | None = None) -> Plan:
    """The plan of a solved candidate, with the simulated time of its program.

    `bound_ns` bounds the objective of more than this candidate; without it, the candidate's own bound is claimed.
    """
    training, pipeline = request.training_with(solved.config), request.pipeline_of(solved.config)
    graph = planned_graph(request.model, training, solved.config)
    tokens = training.global_batch * request.model.tokens_per_sample
    program = lower(graph, solved.layout, pipeline, request.cost, tokens_per_step=tokens)
    arrangement = arrange(graph, solved.layout, pipeline)
    peaks, host_peaks = (peak_memory_bytes(graph, solved.layout.stages, arrangement, space) for space in Space)
    step = simulate(program)
    bound = solved.bound_ns if bound_ns is None else bound_ns
    claims = Claims(
        status=str(SearchStatus.OPTIMAL if bound == solved.objective_ns else SearchStatus.FEASIBLE),
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
