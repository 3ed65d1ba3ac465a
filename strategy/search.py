"""Search: which degrees of parallelism, which micro-batches, which signature for every op.

For every way to cut the devices into stages x data x tensor and the batch into micro-batches (a *candidate*), the
layout problem is solved exactly; candidates are taken best bound first, and one whose bound is no better than the best
objective found is left out. The leading candidates are then simulated, by a function that is passed in, and the fastest
is the answer. Bounds are statements about the objective:

    a candidate's objective   max over stages of stage_ns(x)
    its bound                 max over weights w >= 0 of  min over x of sum_s w_s stage_ns(x) / sum_s w_s

with w all ones, and w the slowest stage alone. More micro-batches on a single stage add acts and save nothing, so there
a candidate's bound holds for all multiples of its number of micro-batches, and only memory asks for more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from strategy.arrangement import Pipeline, arrange
from strategy.convert import Converter, lay_out
from strategy.cost import CostModel
from strategy.errors import InfeasibleError, InputError
from strategy.graph import Graph, Op
from strategy.layout import Layout, Stages, assign_stages
from strategy.layout_problem import Keep, SearchSpace, layout_problem
from strategy.lower import lower
from strategy.measurement import Features
from strategy.memory import peak_memory_bytes
from strategy.models.gpt import GptConfig
from strategy.objective import stage_times_ns
from strategy.placement import Placement
from strategy.plan import Claims, Plan, PlanConfig
from strategy.program import Program
from strategy.rules import along_axes, pinned
from strategy.sbp import NdSbp
from strategy.schedule import Schedule
from strategy.signature import Signature
from strategy.solve import SolveStatus, smallest_limit, solve
from strategy.traffic import sent_bytes_per_step
from strategy.training import Training, training_graph

AXES = ("data", "tensor")
FREE = ("samples split", "samples shared")
BY_HAND = ("data", "tensor")


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What the search wants to know of a simulated step."""

    step_time_s: float
    lower_bound_s: float


Simulate = Callable[[Program], SimulatedStep]


@dataclass(frozen=True, slots=True)
class Pins:
    """What a user fixes: any of the degrees, and the layout of any value."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None
    schedule: Schedule | None = None
    layouts: Mapping[str, NdSbp] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `training.num_micro_batches` is the search's to choose."""

    model_name: str
    model: GptConfig
    training: Training
    cost: CostModel
    memory_limit_bytes: int
    pins: Pins = Pins()

    @property
    def devices(self) -> int:
        """All devices of the cluster are used."""
        return self.cost.cluster.devices


class SearchStatus(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Solved:
    """A candidate with its layout: objective and proved bound, in nanoseconds."""

    config: PlanConfig
    layout: Layout
    objective_ns: int
    bound_ns: int
    peaks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer, and what it was compared with."""

    plan: Plan
    status: SearchStatus
    runners_up: tuple[tuple[PlanConfig, float], ...]
    num_candidates: int
    search_time_s: float


@dataclass(frozen=True)
class _Ground:
    """What all problems of one candidate share."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    converter: Converter


def search(request: Request, *, simulate: Simulate, time_limit_s: float = 55.0, simulated: int = 6) -> SearchResult:
    """The fastest plan found, with its bound.

    Raises:
        InputError: the pins leave no candidate.
        InfeasibleError: no candidate fits the memory limit; names the smallest limit that would do.
    """
    start = time.monotonic()
    deadline = start + time_limit_s
    candidates = sorted(
        candidates_of(request), key=lambda c: (quick_bound_ns(request, c), c.pp, c.tp, c.num_micro_batches)
    )
    if not candidates:
        raise InputError("no plan has these degrees", got=request.pins, hint="their product must be the devices")
    solved: list[Solved] = []
    bounds: list[int] = []
    settled: set[tuple[int, int, int]] = set()
    best = None
    complete = True
    for candidate in candidates:
        shape = (candidate.pp, candidate.dp, candidate.tp)
        quick = quick_bound_ns(request, candidate)
        if shape in settled or (best is not None and quick >= best):
            bounds.append(quick)
            continue
        if time.monotonic() >= deadline:
            complete = False
            bounds.append(quick)
            continue
        found = solve_candidate(
            request, candidate, rules=FREE, time_limit_s=deadline - time.monotonic(), cutoff_ns=best
        )
        if found is None:
            continue
        solved.append(found)
        bounds.append(found.bound_ns)
        best = found.objective_ns if best is None else min(best, found.objective_ns)
        if candidate.pp == 1:
            settled.add(shape)
    if not solved:
        raise _infeasible(request, candidates)
    solved.sort(key=lambda s: (s.objective_ns, s.config.pp, s.config.tp, s.config.num_micro_batches))
    assert best is not None
    bound = min(*bounds, best) if bounds else best
    plans = [simulated_plan(request, s, simulate, bound_ns=min(bound, s.objective_ns)) for s in solved[:simulated]]
    plans.sort(key=lambda plan: plan.claims.step_time_s)
    chosen = plans[0]
    status = (
        SearchStatus.LIMIT
        if not complete
        else SearchStatus.OPTIMAL
        if chosen.claims.gap == 0
        else SearchStatus.FEASIBLE
    )
    chosen = replace(chosen, claims=replace(chosen.claims, status=str(status)))
    runners_up = tuple((plan.config, plan.claims.step_time_s) for plan in plans[1:])
    return SearchResult(chosen, status, runners_up, len(candidates), time.monotonic() - start)


def candidates_of(request: Request) -> Iterator[PlanConfig]:
    """Every division of devices and batch that the pins allow; the smallest numbers of micro-batches first."""
    pins, devices, batch = request.pins, request.devices, request.training.global_batch
    for pp in _divisors(devices):
        if pp > max(request.model.layers, 1) or pins.pp not in (None, pp):
            continue
        for tp in _divisors(devices // pp):
            dp = devices // pp // tp
            if pins.tp not in (None, tp) or pins.dp not in (None, dp) or batch % dp:
                continue
            for count in _divisors(batch // dp):
                micro = batch // dp // count
                if pins.micro_batch not in (None, micro):
                    continue
                schedule = pins.schedule or Schedule.ONE_F_ONE_B
                yield PlanConfig(dp, tp, pp, micro, count, schedule)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def quick_bound_ns(request: Request, config: PlanConfig) -> int:
    """A bound without solving anything: matrix products spread evenly, and the fixed price of every act."""
    model, cost = request.model, request.cost
    tokens = request.training.global_batch * model.sequence
    weights = 12 * model.layers * model.width**2 + model.vocabulary * model.width
    flop = 6 * tokens * weights + 14 * model.layers * tokens * model.sequence * model.width
    slots = config.num_micro_batches + config.pp - 1
    spread = flop / request.devices * slots / config.num_micro_batches
    rate = cost.seconds(Features("matmul", 10**15, 0)) / 1e15
    fixed = cost.seconds(Features("matmul", 0, 0)) * ACTS_PER_LAYER * (model.layers // config.pp)
    return int((spread * rate * 0.999 + fixed * slots) * 1e9)


ACTS_PER_LAYER = 8
"""Matrix products and attention of a layer, forward and backward, counted low."""


def solve_candidate(
    request: Request,
    config: PlanConfig,
    *,
    rules: Sequence[str],
    time_limit_s: float | None = None,
    cutoff_ns: int | None = None,
) -> Solved | None:
    """The best layout of one candidate under one rule per axis; None if none fits the memory limit."""
    ground = _ground(request, config)
    keep = _keep(request, ground, rules)
    weights = (1,) * config.pp
    bound, signatures = _solve_weighted(request, ground, keep, weights, limit=None, time_limit_s=time_limit_s)
    assert signatures is not None
    found = _evaluate(request, config, ground, signatures, bound)
    fits = max(found.peaks) <= request.memory_limit_bytes
    if not fits:
        bound, signatures = _solve_weighted(
            request, ground, keep, weights, limit=request.memory_limit_bytes, time_limit_s=time_limit_s
        )
        if signatures is None:
            return None
        found = _evaluate(request, config, ground, signatures, max(bound, found.bound_ns))
    if config.pp > 1 and (cutoff_ns is None or found.bound_ns < cutoff_ns):
        found = _focus_on_slowest(request, config, ground, keep, found, time_limit_s, fits=fits)
    return found


def _focus_on_slowest(
    request: Request,
    config: PlanConfig,
    ground: _Ground,
    keep: Keep,
    found: Solved,
    time_limit_s: float | None,
    *,
    fits: bool,
) -> Solved:
    """Weigh the slowest stage alone: a second bound, and perhaps a better layout."""
    times = _times(request, ground, found.layout)
    slowest = times.index(max(times))
    weights = tuple(int(stage == slowest) for stage in range(config.pp))
    limit = None if fits else request.memory_limit_bytes
    bound, signatures = _solve_weighted(request, ground, keep, weights, limit=limit, time_limit_s=time_limit_s)
    bound = max(bound, found.bound_ns)
    if signatures is not None:
        other = _evaluate(request, config, ground, signatures, bound)
        if other.objective_ns < found.objective_ns and max(other.peaks) <= request.memory_limit_bytes:
            return other
    return replace(found, bound_ns=min(bound, found.objective_ns))


def _ground(request: Request, config: PlanConfig) -> _Ground:
    training = replace(request.training, num_micro_batches=config.num_micro_batches)
    graph = training_graph(request.model, training)
    size = config.dp * config.tp
    placements = tuple(
        Placement(tuple(range(s * size, (s + 1) * size)), (config.dp, config.tp), AXES) for s in range(config.pp)
    )
    pipeline = Pipeline(config.num_micro_batches, config.schedule, request.cost.cluster.overlaps)
    return _Ground(graph, assign_stages(graph, placements), pipeline, Converter(request.cost, placements))


def _keep(request: Request, ground: _Ground, rules: Sequence[str]) -> Keep:
    by_rule = along_axes(ground.graph, ground.stages.placements[0].mesh, rules)
    if not request.pins.layouts:
        return by_rule
    by_pin = pinned(ground.graph, request.pins.layouts)

    def keep(op: Op, signature: Signature) -> bool:
        return by_rule(op, signature) and by_pin(op, signature)

    return keep


def _solve_weighted(
    request: Request,
    ground: _Ground,
    keep: Keep,
    weights: tuple[int, ...],
    *,
    limit: int | None,
    time_limit_s: float | None,
) -> tuple[int, dict[str, Signature] | None]:
    """(bound on the objective in ns, signatures) of one weighted problem; no signatures if it is infeasible."""
    space = SearchSpace(ground.graph, ground.stages, ground.pipeline, request.cost, ground.converter, weights, keep)
    problem = layout_problem(space, limit=limit)
    solution = solve(problem.problem, time_limit_s=time_limit_s)
    bound = -(-solution.lower_bound // sum(weights))
    if solution.choice is None:
        if solution.status is not SolveStatus.INFEASIBLE and limit is None:
            raise InfeasibleError("the layout problem found no choice in time", hint="raise the time limit")
        return bound, None
    return bound, problem.signatures(solution.choice)


def _times(request: Request, ground: _Ground, layout: Layout) -> tuple[int, ...]:
    arrangement = arrange(ground.graph, layout, ground.pipeline)
    return stage_times_ns(ground.graph, layout, arrangement, request.cost, ground.pipeline)


def _evaluate(
    request: Request, config: PlanConfig, ground: _Ground, signatures: Mapping[str, Signature], bound_ns: int
) -> Solved:
    layout = lay_out(ground.graph, ground.stages, signatures, ground.converter)
    arrangement = arrange(ground.graph, layout, ground.pipeline)
    objective = max(stage_times_ns(ground.graph, layout, arrangement, request.cost, ground.pipeline))
    peaks = peak_memory_bytes(ground.graph, ground.stages, arrangement)
    return Solved(config, layout, objective, min(bound_ns, objective), peaks)


def simulated_plan(request: Request, solved: Solved, simulate: Simulate, *, bound_ns: int | None = None) -> Plan:
    """The plan of a solved candidate, with the simulated time of its program."""
    training = replace(request.training, num_micro_batches=solved.config.num_micro_batches)
    graph = training_graph(request.model, training)
    pipeline = Pipeline(solved.config.num_micro_batches, solved.config.schedule, request.cost.cluster.overlaps)
    tokens = training.global_batch * request.model.sequence
    program = lower(graph, solved.layout, pipeline, request.cost, tokens_per_step=tokens)
    step = simulate(program)
    bound = solved.bound_ns if bound_ns is None else bound_ns
    claims = Claims(
        status=str(SearchStatus.OPTIMAL if bound == solved.objective_ns else SearchStatus.FEASIBLE),
        objective_s=solved.objective_ns / 1e9,
        lower_bound_s=bound / 1e9,
        gap=max(0.0, (solved.objective_ns / 1e9 - bound / 1e9) / (solved.objective_ns / 1e9)),
        step_time_s=step.step_time_s,
        simulated_lower_bound_s=step.lower_bound_s,
        peak_memory_bytes=solved.peaks,
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


def plan_by_rule(request: Request, config: PlanConfig, rules: Sequence[str], simulate: Simulate) -> Plan:
    """The best plan of one candidate under named rules: how hand-written competitors are made.

    Raises:
        InfeasibleError: it does not fit the memory limit.
    """
    solved = solve_candidate(request, config, rules=rules)
    if solved is None:
        raise _infeasible(request, [config])
    return simulated_plan(request, solved, simulate)


def _infeasible(request: Request, candidates: Sequence[PlanConfig]) -> InfeasibleError:
    """Proved: no layout of any candidate fits. Names the smallest limit that would do, and the largest tensor."""
    smallest = None
    for config in candidates:
        ground = _ground(request, config)
        space = SearchSpace(
            ground.graph,
            ground.stages,
            ground.pipeline,
            request.cost,
            ground.converter,
            (1,) * config.pp,
            _keep(request, ground, FREE),
        )
        found = smallest_limit(layout_problem(space, limit=request.memory_limit_bytes).problem)
        if found is not None and (smallest is None or found < smallest):
            smallest = found
    return InfeasibleError(
        f"no plan fits {request.memory_limit_bytes} bytes per device",
        smallest_limit=smallest,
        hint=f"the smallest limit that works is {smallest} bytes",
    )


__all__ = [
    "BY_HAND",
    "FREE",
    "Pins",
    "Request",
    "SearchResult",
    "SearchStatus",
    "SimulatedStep",
    "Solved",
    "candidates_of",
    "plan_by_rule",
    "search",
    "simulated_plan",
    "solve_candidate",
]
