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

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from strategy.arrangement import Pipeline, arrange
from strategy.convert import Converter, lay_out
from strategy.cost import CostModel
from strategy.deduce import Deduction, deduce
from strategy.errors import InfeasibleError, InputError, SbplanError, report
from strategy.graph import Graph, Op, template_name
from strategy.layout import Layout, Stages, assign_stages
from strategy.layout_problem import Keep, LayoutProblem, SearchSpace, layout_problem
from strategy.lower import lower
from strategy.measurement import Features
from strategy.memory import memory_peak, peak_memory_bytes
from strategy.models.gpt import GptConfig
from strategy.objective import stage_times_ns
from strategy.pins import check_pins, pinned, placement_problems, stage_of_devices
from strategy.placement import Placement
from strategy.plan import Claims, Plan, PlanConfig
from strategy.program import Program
from strategy.rules import along_axes
from strategy.sbp import B, NdSbp
from strategy.schedule import Schedule
from strategy.signature import Signature, op_signatures
from strategy.solve import PeakLimitError, SolveStatus, smallest_limit, solve
from strategy.solve.peak import find_legal
from strategy.tensor import Shape
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
Watch = Callable[[int, int, PlanConfig], None]
"""(number of the candidate, candidates in all, the candidate): for progress bars."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What a user fixes: any of the degrees, the layout of any value, the stage of any op (both by name or pattern)."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None
    num_micro_batches: int | None = None
    schedule: Schedule | None = None
    layouts: Mapping[str, NdSbp] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    placements: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Pattern of op names -> the devices of its stage, instead of the stage's number."""

    def __post_init__(self) -> None:
        report(list(placement_problems(self.placements)), where="pins")

    @property
    def devices_per_stage(self) -> int | None:
        """As many as a stage has that is pinned by its devices."""
        return next((len(devices) for devices in self.placements.values()), None)

    @property
    def numbered_stages(self) -> dict[str, int]:
        """Pattern of op names -> stage, of those pinned by their devices too."""
        return {**self.stages, **{p: stage_of_devices(devices) for p, devices in self.placements.items()}}


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `training.num_micro_batches` is the search's to choose."""

    model_name: str
    model: GptConfig
    training: Training
    cost: CostModel
    memory_limit_bytes: int
    pins: Pins = Pins()
    deduction: Deduction | None = None
    """Deduce signatures by this rule instead of searching for the best ones."""

    @property
    def devices(self) -> int:
        """All devices of the cluster are used."""
        return self.cost.cluster.devices


class OutOfTimeError(SbplanError):
    """The time limit was reached before there was any plan."""

    exit_code = 4


class SearchStatus(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Solved:
    """A candidate with a layout: its objective and a proved bound on every layout's, in nanoseconds.

    `peaks` are bytes on the first rank of each stage, which has the largest pieces.
    """

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


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is known of a candidate: bounds without and with the memory limit, and its best layout, if one is known.

    `bound_ns` is None where no layout fits. Bounds end at the cutoff.
    """

    free_bound_ns: int
    bound_ns: int | None
    solved: Solved | None


@dataclass(frozen=True, slots=True)
class _Settled:
    """A bound, memory aside, that holds for all multiples of a number of micro-batches."""

    num_micro_batches: int
    bound_ns: int


@dataclass(frozen=True)
class _Ground:
    """What all problems of one candidate share."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    converter: Converter


def search(
    request: Request,
    *,
    simulate: Simulate,
    time_limit_s: float = 55.0,
    simulated: int = 6,
    watch: Watch | None = None,
) -> SearchResult:
    """The fastest plan found, with its bound.

    Args:
        request: what is searched for.
        simulate: gives the simulated time of a program.
        time_limit_s: wall time; most of it for solving, the rest for simulating, at least one plan.
        simulated: how many leading candidates are simulated.
        watch: is told of every candidate before it is solved.

    Raises:
        InputError: the pins leave no candidate.
        InfeasibleError: no candidate fits the memory limit (names the smallest limit that would do) or its pins.
        OutOfTimeError: the time ran out before there was any plan.
    """
    start = time.monotonic()
    deadline = start + SOLVING_SHARE * time_limit_s
    candidates = sorted(
        candidates_of(request), key=lambda c: (quick_bound_ns(request, c), c.pp, c.tp, c.num_micro_batches)
    )
    if not candidates:
        raise InputError("no plan has these degrees", got=request.pins, hint="their product must be the devices")
    solved: list[Solved] = []
    bounds: list[int] = []
    settled: dict[tuple[int, int, int], _Settled] = {}
    best = None
    complete = True
    beaten: list[tuple[int, int, PlanConfig]] = []
    conflict: InfeasibleError | None = None
    if _state_bytes(request) > request.memory_limit_bytes:
        solved = _by_hand(request, _likely(request, candidates), 1, start + BY_HAND_SHARE * time_limit_s)
        best = min((one.objective_ns for one in solved), default=None)
    for number, candidate in enumerate(candidates):
        shape = (candidate.pp, candidate.dp, candidate.tp)
        quick = quick_bound_ns(request, candidate)
        if shape in settled and candidate.num_micro_batches % settled[shape].num_micro_batches == 0:
            quick = max(quick, settled[shape].bound_ns)
        if best is not None and quick >= best:
            bounds.append(quick)
            continue
        if time.monotonic() >= deadline:
            complete = False
            bounds.append(quick)
            continue
        if watch is not None:
            watch(number, len(candidates), candidate)
        try:
            verdict = _examine(request, candidate, FREE, deadline, best)
        except OutOfTimeError:
            complete = False
            bounds.append(quick)
            continue
        except InfeasibleError as error:
            conflict = error
            continue
        if candidate.pp == 1 and shape not in settled:
            settled[shape] = _Settled(candidate.num_micro_batches, verdict.free_bound_ns)
        complete = complete and time.monotonic() < deadline
        if verdict.bound_ns is None:
            continue
        bounds.append(max(quick, verdict.bound_ns))
        if verdict.solved is not None:
            solved.append(verdict.solved)
            best = verdict.solved.objective_ns if best is None else min(best, verdict.solved.objective_ns)
        else:
            beaten.append((verdict.bound_ns, number, candidate))
    if not solved:
        if not complete:
            raise OutOfTimeError(f"no plan was found within {time_limit_s:g} s; raise the time limit")
        raise _infeasible(request, candidates, deadline) if conflict is None else conflict
    solved += _by_hand(request, [c for *_, c in sorted(beaten)], COMPETITORS - len(solved), deadline)
    solved.sort(key=lambda s: (s.objective_ns, s.config.pp, s.config.tp, s.config.num_micro_batches))
    assert best is not None
    bound = min(*bounds, best) if bounds else best
    plans: list[Plan] = []
    for one in solved[:simulated]:
        if plans and time.monotonic() >= start + time_limit_s:
            break
        plans.append(simulated_plan(request, one, simulate, bound_ns=min(bound, one.objective_ns)))
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


def _by_hand(request: Request, candidates: Sequence[PlanConfig], wanted: int, deadline: float) -> list[Solved]:
    """The first `wanted` candidates that fit the way a person would lay them out; at most one per mesh."""
    found: dict[tuple[int, int, int], Solved] = {}
    for config in candidates:
        if len(found) >= wanted or time.monotonic() >= deadline:
            break
        shape = (config.pp, config.dp, config.tp)
        if shape in found:
            continue
        try:
            solved = solve_candidate(request, config, rules=BY_HAND, time_limit_s=deadline - time.monotonic())
        except (InfeasibleError, OutOfTimeError):
            continue
        if solved is not None:
            found[shape] = solved
    return list(found.values())


def _likely(request: Request, candidates: Sequence[PlanConfig]) -> list[PlanConfig]:
    """First what is likely to fit when laid out by hand: tensor parallelism inside a node, few copies."""
    inside = request.cost.cluster.devices_per_node
    return sorted(
        candidates,
        key=lambda c: (
            _state_bytes(request) > FILLED * request.memory_limit_bytes * c.tp * c.pp,
            c.tp > inside,
            c.micro_batch,
            c.dp,
            -c.tp,
            c.num_micro_batches,
        ),
    )


def _state_bytes(request: Request) -> int:
    """About what parameters, gradients and both moments take on one device, in single precision."""
    model = request.model
    return 16 * (12 * model.layers * model.width**2 + model.vocabulary * model.width)


def candidates_of(request: Request) -> Iterator[PlanConfig]:
    """Every division of devices and batch that the pins allow; the smallest numbers of micro-batches first."""
    pins, devices, batch = request.pins, request.devices, request.training.global_batch
    for pp in _divisors(devices):
        last = max(pins.numbered_stages.values(), default=0)
        if pp > max(request.model.layers, 1) or pins.pp not in (None, pp) or pp <= last:
            continue
        if pins.devices_per_stage not in (None, devices // pp):
            continue
        for tp in _divisors(devices // pp):
            dp = devices // pp // tp
            if pins.tp not in (None, tp) or pins.dp not in (None, dp) or batch % dp:
                continue
            for count in _divisors(batch // dp):
                micro = batch // dp // count
                if pins.micro_batch not in (None, micro) or pins.num_micro_batches not in (None, count):
                    continue
                schedule = pins.schedule or Schedule.ONE_F_ONE_B
                yield PlanConfig(dp, tp, pp, micro, count, schedule)


def space_log10(request: Request) -> float:
    """Decimal logarithm of the number of plans that a search chooses from: candidates times signatures of ops.

    Repeated layers are alike and count once.
    """
    sizes = []
    for config in candidates_of(request):
        ground = _ground(request, config)
        keep, mesh = _keep(request, ground, FREE), ground.stages.placements[0].mesh
        options: dict[str, int] = {}
        for op in ground.graph.ops:
            name = template_name(op.name, op.layer)
            if name not in options:
                options[name] = sum(keep(op, signature) for signature in op_signatures(ground.graph, op, mesh))
        sizes.append(sum(math.log10(count) for count in options.values() if count))
    largest = max(sizes, default=0.0)
    return largest + math.log10(sum(10 ** (size - largest) for size in sizes)) if sizes else 0.0


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


BY_HAND_SHARE = 0.3
"""Share of the time limit for a first plan by hand, where memory is so scarce that the search may find none in time."""

FILLED = 0.7
"""Part of the memory that parameters may fill in a plan by hand that is likely to fit."""

COMPETITORS = 3
"""Plans that are simulated at least, if need be with some laid out by hand."""

SOLVING_SHARE = 0.9
"""Share of the time limit after which nothing more is solved, so that there is time to simulate."""

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
    """The best layout of one candidate under one rule per axis; None if none fits the memory limit.

    With a cutoff, layouts that are no better are of no interest: None, or one of them, if none is better.

    Raises:
        InfeasibleError: the pins leave some op without signature.
        OutOfTimeError: the time ran out before there was any layout.
    """
    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    return _examine(request, config, rules, deadline, cutoff_ns).solved


def _examine(
    request: Request, config: PlanConfig, rules: Sequence[str], deadline: float, cutoff_ns: int | None
) -> _Verdict:
    """Solve without the memory limit; with it if that does not fit; then see what the slowest stage alone says."""
    ground = _ground(request, config)
    keep = _keep(request, ground, rules)
    if request.deduction is not None:
        deduced = _deduced(request, config, ground, keep, request.deduction)
        return _Verdict(deduced.bound_ns, deduced.bound_ns, deduced)
    weights = (1,) * config.pp

    def solved_under(limit: int | None) -> tuple[int, dict[str, Signature] | None]:
        return _solve_weighted(request, ground, keep, weights, limit=limit, deadline=deadline, cutoff_ns=cutoff_ns)

    free_bound, signatures = solved_under(None)
    found = None if signatures is None else _evaluate(request, config, ground, signatures, free_bound)
    beaten = cutoff_ns is not None and free_bound >= cutoff_ns
    fits = found is not None and max(found.peaks) <= request.memory_limit_bytes
    bound: int | None = free_bound
    if not fits and beaten:
        found = None
    elif not fits:
        bound, signatures = solved_under(request.memory_limit_bytes)
        bound = max(bound, free_bound)
        if signatures is None:
            proved_worse = cutoff_ns is not None and bound >= cutoff_ns
            return _Verdict(free_bound, bound if proved_worse else None, None)
        found = _evaluate(request, config, ground, signatures, bound)
    if found is not None and config.pp > 1 and (cutoff_ns is None or found.bound_ns < cutoff_ns):
        found = _focus_on_slowest(request, config, ground, keep, found, deadline, cutoff_ns, fits=fits)
        found = _no_worse_than_deduced(request, config, ground, keep, found)
    return _Verdict(free_bound, bound if found is None else found.bound_ns, found)


def _deduced(request: Request, config: PlanConfig, ground: _Ground, keep: Keep, rule: Deduction) -> Solved:
    """The layout that a rule deduces.

    Raises:
        InfeasibleError: the pins leave an op without signature, or the layout needs more memory than there is.
    """
    signatures = deduce(ground.graph, ground.stages, ground.converter, keep, rule=rule)
    found = _evaluate(request, config, ground, signatures, quick_bound_ns(request, config))
    if max(found.peaks) > request.memory_limit_bytes:
        needed = f"{max(found.peaks)} bytes per device needed, {request.memory_limit_bytes} are there"
        raise InfeasibleError(f"the deduced layout does not fit: {needed}", hint="pin splits, or search")
    return found


def _no_worse_than_deduced(request: Request, config: PlanConfig, ground: _Ground, keep: Keep, found: Solved) -> Solved:
    """Several stages are weighed against one another, which is no proof; so look at what no search would give."""
    try:
        deduced = _deduced(request, config, ground, keep, Deduction.MATCH_ALL)
    except InfeasibleError:
        return found
    if deduced.objective_ns >= found.objective_ns:
        return found
    return replace(deduced, bound_ns=min(found.bound_ns, deduced.objective_ns))


def _focus_on_slowest(
    request: Request,
    config: PlanConfig,
    ground: _Ground,
    keep: Keep,
    found: Solved,
    deadline: float,
    cutoff_ns: int | None,
    *,
    fits: bool,
) -> Solved:
    """Weigh the slowest stage alone: a second bound, and perhaps a better layout."""
    times = _times(request, ground, found.layout)
    slowest = times.index(max(times))
    weights = tuple(int(stage == slowest) for stage in range(config.pp))
    limit = None if fits else request.memory_limit_bytes
    try:
        bound, signatures = _solve_weighted(
            request, ground, keep, weights, limit=limit, deadline=deadline, cutoff_ns=cutoff_ns
        )
    except OutOfTimeError:
        return found
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
    pins = request.pins
    check_pins(graph, layouts=pins.layouts, stages=pins.stages, placements=pins.placements, axes=len(AXES))
    stages = assign_stages(graph, placements, pins=pins.numbered_stages)
    return _Ground(graph, stages, pipeline, Converter(request.cost, placements))


def _keep(request: Request, ground: _Ground, rules: Sequence[str]) -> Keep:
    mesh = ground.stages.placements[0].mesh
    by_rule = along_axes(ground.graph, mesh, rules)
    if not request.pins.layouts:
        return by_rule
    by_pin = pinned(ground.graph, {name: _on_mesh(nd, mesh) for name, nd in request.pins.layouts.items()}, mesh)

    def keep(op: Op, signature: Signature) -> bool:
        return by_rule(op, signature) and by_pin(op, signature)

    return keep


def _on_mesh(nd_sbp: NdSbp, mesh: Shape) -> NdSbp:
    """The layout as signatures write it: along an axis of one rank there is nothing to lay out."""
    return tuple(B if parts == 1 else sbp for sbp, parts in zip(nd_sbp, mesh, strict=True))


def _solve_weighted(
    request: Request,
    ground: _Ground,
    keep: Keep,
    weights: tuple[int, ...],
    *,
    limit: int | None,
    deadline: float,
    cutoff_ns: int | None = None,
) -> tuple[int, dict[str, Signature] | None]:
    """(bound on the objective in ns, signatures) of one weighted problem.

    No signatures if it is infeasible, or if nothing beats the cutoff; then the bound is at least that.

    Raises:
        OutOfTimeError: neither a choice nor the proof that there is none was found in time.
    """
    space = SearchSpace(ground.graph, ground.stages, ground.pipeline, request.cost, ground.converter, weights, keep)
    try:
        problem = layout_problem(space, limit=limit, deadline=deadline)
    except TimeoutError as error:
        raise OutOfTimeError(f"{error}; raise the time limit") from error
    left_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
    cutoff = None if cutoff_ns is None else (cutoff_ns - 1) * sum(weights) + 1
    solution = solve(problem.problem, time_limit_s=left_s, cutoff=cutoff)
    bound = -(-solution.lower_bound // sum(weights))
    if solution.choice is not None:
        return bound, problem.signatures(solution.choice)
    if solution.status in (SolveStatus.INFEASIBLE, SolveStatus.CUTOFF):
        return bound, None
    raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")


def _times(request: Request, ground: _Ground, layout: Layout) -> tuple[int, ...]:
    arrangement = arrange(ground.graph, layout, ground.pipeline)
    return stage_times_ns(ground.graph, layout, arrangement, request.cost, ground.pipeline)


def _evaluate(
    request: Request, config: PlanConfig, ground: _Ground, signatures: Mapping[str, Signature], bound_ns: int
) -> Solved:
    layout = lay_out(ground.graph, ground.stages, signatures, ground.converter)
    arrangement = arrange(ground.graph, layout, ground.pipeline)
    objective = max(stage_times_ns(ground.graph, layout, arrangement, request.cost, ground.pipeline))
    first_ranks = [placement.devices[0] for placement in ground.stages.placements]
    peaks = tuple(memory_peak(ground.graph, ground.stages, arrangement, rank).nbytes for rank in first_ranks)
    return Solved(config, layout, objective, min(bound_ns, objective), peaks)


def simulated_plan(request: Request, solved: Solved, simulate: Simulate, *, bound_ns: int | None = None) -> Plan:
    """The plan of a solved candidate, with the simulated time of its program."""
    training = replace(request.training, num_micro_batches=solved.config.num_micro_batches)
    graph = training_graph(request.model, training)
    pipeline = Pipeline(solved.config.num_micro_batches, solved.config.schedule, request.cost.cluster.overlaps)
    tokens = training.global_batch * request.model.sequence
    program = lower(graph, solved.layout, pipeline, request.cost, tokens_per_step=tokens)
    peaks = peak_memory_bytes(graph, solved.layout.stages, arrange(graph, solved.layout, pipeline))
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


def _infeasible(request: Request, candidates: Sequence[PlanConfig], deadline: float = math.inf) -> InfeasibleError:
    """Proved: no layout of any candidate fits. Names the smallest limit that would do, and its biggest item."""
    smallest: tuple[int, PlanConfig] | None = None
    complete = True
    for config in candidates:
        left_s = None if deadline == math.inf else max(1.0, deadline - time.monotonic())
        try:
            problem = _limited_problem(request, config, request.memory_limit_bytes)[1].problem
            found = smallest_limit(problem, time_limit_s=left_s)
        except PeakLimitError as error:
            complete = False
            found = error.upper
        if found is not None and (smallest is None or found < smallest[0]):
            smallest = found, config
        if time.monotonic() >= deadline:
            complete = False
            break
    problem_text = f"no plan fits {request.memory_limit_bytes} bytes per device"
    if smallest is None:
        return InfeasibleError(problem_text, hint="the time ran out before a limit that works was found")
    limit, config = smallest
    word = "the smallest limit that works is" if complete else "a limit that works (the time ran out) is"
    hint = f"{word} {limit} bytes, with {_biggest_item(request, config, limit)}"
    return InfeasibleError(problem_text, smallest_limit=limit, hint=hint)


def _limited_problem(request: Request, config: PlanConfig, limit: int) -> tuple[_Ground, LayoutProblem]:
    ground = _ground(request, config)
    weights, keep = (1,) * config.pp, _keep(request, ground, FREE)
    space = SearchSpace(ground.graph, ground.stages, ground.pipeline, request.cost, ground.converter, weights, keep)
    return ground, layout_problem(space, limit=limit)


def _biggest_item(request: Request, config: PlanConfig, limit: int) -> str:
    """What fills the memory of a candidate that just fits into `limit`."""
    degrees = f"dp {config.dp}, tp {config.tp}, pp {config.pp}, micro-batches: {config.num_micro_batches}"
    ground, problem = _limited_problem(request, config, limit)
    legal = find_legal(problem.problem, time_limit_s=EXPLANATION_S)
    if legal.choice is None:
        return degrees
    layout = lay_out(ground.graph, ground.stages, problem.signatures(legal.choice), ground.converter)
    arrangement = arrange(ground.graph, layout, ground.pipeline)
    peaks = peak_memory_bytes(ground.graph, ground.stages, arrangement)
    rank = peaks.index(max(peaks))
    name, nbytes = memory_peak(ground.graph, ground.stages, arrangement, rank).tensors[0]
    return f"{degrees}; the biggest item is then {name} with {nbytes} bytes"


EXPLANATION_S = 5.0
"""Seconds to spend on saying what fills the memory."""


__all__ = [
    "BY_HAND",
    "FREE",
    "OutOfTimeError",
    "Pins",
    "Request",
    "SearchResult",
    "SearchStatus",
    "SimulatedStep",
    "Solved",
    "Watch",
    "candidates_of",
    "plan_by_rule",
    "search",
    "simulated_plan",
    "solve_candidate",
]
