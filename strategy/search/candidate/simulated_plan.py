"""Simulated plan: a solved candidate as a plan that claims the simulated time of its program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.base.status import Status
from strategy.exports.trainer_fit import claiming_fit
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.config import PlanConfig
from strategy.layout.objective import Priced
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import fullest_rank, memory_nbytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.passes.planned import planned_graph
from strategy.plan.plan import Claims, Plan
from strategy.program.program import Program
from strategy.sbp.placement import Space
from strategy.search.candidate.candidate_solve import Solved
from strategy.space.request import Request


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What the search wants to know of a simulated step."""

    step_time_s: float
    lower_bound_s: float


Simulate = Callable[[Program], SimulatedStep]

OP_S, ACT_S, RANK_S = 5e-4, 2e-6, 2e-4
"""Seconds that a plan takes about, on one core: per op of its graph, per act of a step and per rank."""


def planning_s(ops: int, config: PlanConfig) -> float:
    """About how long a plan of so many ops takes from its signatures to its simulated step, where its ranks fold."""
    ranks = config.pp * math.prod(config.mesh)
    return OP_S * ops + ACT_S * ops * config.num_micro_batches + RANK_S * ranks


def check_simulated_in_time(program: Program, budget: Budget) -> None:
    """Refuse to simulate what is likely to take longer than there is time.

    Raises:
        OutOfTimeError: it is.
    """
    if ACT_S * sum(actor.acts_per_step for actor in program.actors) > budget.left_s():
        raise OutOfTimeError("there is no time left to simulate the plan; raise the time limit")


def _most_nbytes(request: Request, rank: int) -> int:
    """What a rank's device may hold."""
    return request.cost.cluster.memory_limit_bytes(request.memory_limit_bytes, (rank,))


def simulated_plan(
    request: Request,
    solved: Solved,
    simulate: Simulate,
    *,
    bound_ns: int | None = None,
    priced: Priced | None = None,
    budget: Budget = UNLIMITED,
    least_excess: bool = False,
) -> Plan:
    """The plan of a solved candidate, with the simulated time of its program.

    Args:
        request: what is searched for.
        solved: the candidate.
        simulate: gives the simulated time of a program.
        bound_ns: bounds the objective of more than this candidate; without it, the candidate's own bound is claimed.
        priced: the candidate's graph with its prices, where they are known.
        least_excess: whether it is enough to know of one rank that its memory is exceeded, not of the fullest.
        budget: what it may take; it is given up where that is over, or will be before the step has been simulated.

    Raises:
        InfeasibleError: its memory, as it is laid out, exceeds the limit, or what it offloads the host's memory; or
            the trainer that it is for is not likely to hold it.
        OutOfTimeError: there is not enough time.
    """
    training = request.training_with(solved.config)
    tokens = training.global_batch * request.model.tokens_per_sample
    if priced is None:
        graph = planned_graph(request.model, training, solved.config)
        priced = Priced(graph, solved.layout, request.pipeline_of(solved.config), request.cost)
    most = partial(_most_nbytes, request) if least_excess else None
    program = lower_priced(priced, tokens_per_step=tokens, folds=True, budget=budget, most_nbytes=most)
    peaks, host_peaks = memory_nbytes(program), memory_nbytes(program, Space.HOST)
    there = host_memory_bytes(request.cost.cluster)
    if max(host_peaks) > there:
        raise InfeasibleError(
            f"the host does not hold it: {max(host_peaks)} bytes per device needed, {there} are there"
        )
    needed, limit = fullest_rank(request.cost.cluster, peaks, request.memory_limit_bytes)
    if needed > limit:
        said = f"{needed} bytes per device needed, {limit} are there"
        raise InfeasibleError(f"the layout does not fit: {said}", smallest_limit=max(peaks))
    check_simulated_in_time(program, budget)
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
    found = Plan(
        request.model_name,
        request.model,
        training,
        request.cost.cluster,
        request.cost,
        solved.config,
        solved.layout,
        claims,
    )
    return claiming_fit(found.with_prices(priced), request.pins)
