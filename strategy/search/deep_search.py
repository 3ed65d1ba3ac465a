"""Deep search: the best configuration of a model whose layers are alike, level by level.

    level 0   every configuration, by the least work and memory that it can do with     `configurations`
    level 1   one layout problem per mesh and micro-batch, on a short model             `template`
    level 2   the leading plans in full: laid out, placed in memory, simulated

Groups of configurations are refined in the order of what they promise, by a rule of thumb. A group whose bound is not
below the best objective by more than the gap is left out; the bound of the answer is the least of all groups.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, InternalError, OutOfTimeError
from strategy.base.status import Status
from strategy.graph.signature import Signature
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import evaluated
from strategy.search.candidate.candidates import Request, free_rules, placements_of, space_of
from strategy.search.candidate.least_work import LeastWork
from strategy.search.candidate.quick_bound import least_work
from strategy.search.candidate.simulated_plan import Simulate, simulated_plan
from strategy.search.configurations import MeshGroup, mesh_groups
from strategy.search.layouts.short_model import expanded
from strategy.search.search_result import SearchResult, Watch
from strategy.search.template.layer_template import LayerTemplate, Weights
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import Pipelined, messages_ns, pipelined

GAP = 0.01
"""Part of the objective that it is not worth refining groups for."""
TIE = 0.01
"""What filling the memory counts, as a part of the step."""
HARDER = (5.0, 40.0, 300.0)
"""By these factors bytes count more where what was found does not fit."""
REFINING_SHARE = 0.6
"""Share of the time that is left after which no further group is refined."""
MARGIN = 0.92
"""Memory as it is laid out over the sum of its parts, until a plan has been laid out: blocks share places."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A configuration with its layouts, as the short model has them."""

    found: Pipelined
    template: LayerTemplate
    signatures: Mapping[str, Signature]


@dataclass(slots=True)
class _Known:
    """What has been found out: proposals, and the least bounds of what was refined and of what was not."""

    proposals: list[_Proposal] = field(default_factory=list)
    bounds_ns: list[int] = field(default_factory=list)
    margins: dict[Schedule, float] = field(default_factory=dict)
    """Memory as it was laid out over the sum of its parts, where that was more than `MARGIN`."""
    complete: bool = True

    def leave_out(self, bound_ns: int) -> None:
        """Take note of something that there was no time for."""
        self.complete = False
        self.bounds_ns.append(bound_ns)

    def margin(self, schedule: Schedule) -> float:
        """What a sum of parts is multiplied by."""
        return self.margins.get(schedule, MARGIN)

    def fitting(self, request: Request) -> list[_Proposal]:
        """Those that are likely to fit, fastest first."""
        limit, there = request.memory_limit_bytes, host_memory_bytes(request.cost.cluster)
        fits = (
            one
            for one in self.proposals
            if self.margin(one.found.config.schedule) * max(one.found.peak_bytes) <= limit
            and max(one.found.host_bytes) <= there
        )
        return sorted(fits, key=lambda one: one.found.step_ns)


def deep_search(
    request: Request, short: Model, *, simulate: Simulate, budget: Budget, simulated: int, watch: Watch | None
) -> SearchResult:
    """The fastest plan found, with its bound; see `search`.

    Raises:
        InputError: the pins leave no configuration.
        InfeasibleError: no configuration fits the memory limit.
        OutOfTimeError: the time ran out before there was any plan.
    """
    start = time.monotonic()
    work = least_work(request)
    groups = mesh_groups(request, work)
    if not groups:
        hint = "their product must be the devices; interleaved takes micro-batches in groups of pp"
        raise InputError("no plan has these degrees", got=request.pins, hint=hint)
    known = _Known()
    interrupted = False
    try:
        _refine_all(request, short, work, groups, known, budget.share(REFINING_SHARE), watch)
    except KeyboardInterrupt:
        if not known.fitting(request):
            raise
        interrupted, simulated = True, 1
        known.leave_out(groups[0].bound_ns)
    plans = _plans(request, known, simulate, simulated, budget)
    if not plans:
        raise _nothing_found(request, known, groups)
    best = min(plans, key=lambda plan: plan.claims.step_time_s)
    status = Status.FEASIBLE if known.complete else Status.LIMIT
    status = Status.OPTIMAL if best.claims.gap == 0 else status
    chosen = replace(best, claims=replace(best.claims, status=str(status)))
    others = sorted((plan for plan in plans if plan is not best), key=lambda plan: plan.claims.step_time_s)
    runners_up = tuple((plan.config, plan.claims.step_time_s) for plan in others)
    count = sum(len(group.configs) for group in groups)
    return SearchResult(chosen, status, runners_up, count, time.monotonic() - start, interrupted)


def _refine_all(
    request: Request,
    short: Model,
    work: LeastWork,
    groups: list[MeshGroup],
    known: _Known,
    budget: Budget,
    watch: Watch | None,
) -> None:
    """Refine what promises most, as long as something better by the gap can be left."""
    fits = [group for group in groups if _least_bytes(request, work, group.config) <= request.memory_limit_bytes]
    for number, group in enumerate(sorted(fits, key=lambda group: _promise(request, work, group))):
        best = known.fitting(request)[:1]
        if best and group.bound_ns >= (1 - GAP) * best[0].found.step_ns:
            known.bounds_ns.append(group.bound_ns)
            continue
        if budget.is_over():
            known.leave_out(group.bound_ns)
            continue
        if watch is not None:
            watch(number, len(fits), group.config)
        try:
            _refine(request, short, group, known, budget)
        except OutOfTimeError:
            known.leave_out(group.bound_ns)
        except InfeasibleError:
            continue


def _refine(request: Request, short: Model, group: MeshGroup, known: _Known, budget: Budget) -> None:
    """Solve the layout problem of a group, and make up its configurations; hold less where that does not fit."""
    config = group.config
    weights = _weights(request, group)
    least = _propose(request, short, group, weights, known, budget)
    slack = weights.byte * request.memory_limit_bytes * config.pp
    for one, bound_ns in zip(group.configs, group.bounds_ns, strict=True):
        known.bounds_ns.append(max(bound_ns, _template_bound(one, least - slack, weights)))
    for harder in HARDER:
        best = known.fitting(request)
        if budget.is_over() or (best and group.bound_ns >= (1 - GAP) * best[0].found.step_ns):
            return
        if any(one.found.config in group.configs for one in best):
            return
        _propose(request, short, group, replace(weights, byte=harder * weights.byte, copies=True), known, budget)


def _propose(request: Request, short: Model, group: MeshGroup, weights: Weights, known: _Known, budget: Budget) -> int:
    """Add the configurations of a group under the layouts that cost least; returns what these cost."""
    template = LayerTemplate.of(request, short, group.config, weights, budget)
    least, signatures = template.solve(budget)
    layout, arrangement = template.arranged(signatures)
    parts = parts_of(template.space.graph, layout, arrangement, request.cost)
    converter = Converter(request.cost, placements_of(group.config)[:2])
    between = messages_ns(template.space, signatures, converter)
    overlaps = request.cost.cluster.overlaps
    for one in group.configs:
        if known.proposals and budget.is_over():
            known.complete = False
            break
        found = pipelined(parts, one, request.model.layers, between, overlaps=overlaps)
        known.proposals.append(_Proposal(found, template, signatures))
    return least


def _weights(request: Request, group: MeshGroup) -> Weights:
    """Of a micro-batch and of a step: ((m + (p - 1) / 2) T + U) / p bounds 1F1B (see `makespan_bound`).

    All of the memory counts as much as a small part of the step, so that of alike layouts the one is taken that holds
    less.
    """
    config = group.config
    p, m = config.pp, config.num_micro_batches
    in_flight = min(p, m)
    micro = 2 * m + p - 1 if m > 2 * p else 2 * m
    byte = TIE * 2 * group.bound_ns / request.memory_limit_bytes
    return Weights(micro, 2, byte, in_flight)


def _template_bound(config: PlanConfig, least: float, weights: Weights) -> int:
    """What a step takes at least where the weighted sum of all work is at least so much."""
    bound = least / (weights.step * config.pp)
    if config.schedule not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):  # m T + U alone
        bound *= weights.step * config.num_micro_batches / weights.micro_batch
    return int(bound * (1 - 1e-12))


def _least_bytes(request: Request, work: LeastWork, config: PlanConfig) -> int:
    """What the first stage holds at least: state shared among all its ranks, and activations split as far as can be."""
    share = request.model.layers // config.pp / request.model.layers
    ranks = config.tp * config.cp
    state = 16 * _layer_parameters(request) * share / (ranks * config.dp)
    in_flight = min(config.pp, config.num_micro_batches) if config.pp > 1 else 1
    saved = work.saved_bytes(config.recompute) * share * config.micro_batch * in_flight / ranks
    return int(state + saved * (config.virtual_stages == 1))


def _layer_parameters(request: Request) -> int:
    """Parameters of the repeated layers."""
    few, more = (replace_layers(request.model, count).parameters for count in (1, 2))
    return (more - few) * request.model.layers


def replace_layers(model: Model, layers: int) -> Model:
    """The model with another number of layers."""
    found: Model = replace(model, layers=layers)  # type: ignore[type-var]
    return found


def _promise(request: Request, work: LeastWork, group: MeshGroup) -> float:
    """A guess of the step's nanoseconds, to begin with what is likely to be good."""
    config, cluster = group.config, request.cost.cluster
    inside = cluster.devices_per_node
    parameters = request.model.parameters / (config.tp * config.pp)
    static = parameters * (7 + 12 / config.dp if config.zero_stage < 3 else 18 / config.dp)
    in_flight = min(config.pp, config.num_micro_batches)
    per_stage = work.saved_bytes(config.recompute) / (config.pp * config.tp * config.cp)
    held = static + 2 * per_stage * config.micro_batch * in_flight
    exposed = 0.04 * min(config.tp, inside).bit_length() + max(0, config.tp - inside)
    gathers = config.num_micro_batches if config.zero_stage == 3 else 1
    gathered_ns = 6 * parameters * gathers / cluster.inter.bytes_per_s * 1e9 if config.dp > 1 else 0.0
    least = work.seconds(config)
    uneven_ns = least.outside_s * (1 - 1 / config.pp) * config.num_micro_batches * 1e9
    crowded = 1.0 if held <= request.memory_limit_bytes else 1e3
    return crowded * ((group.bound_ns + uneven_ns) * (1 + exposed) + gathered_ns)


def _plans(request: Request, known: _Known, simulate: Simulate, most: int, budget: Budget) -> list[Plan]:
    """The plans of the leading proposals that fit, as many as there is time for; one at least if any does."""
    plans: list[Plan] = []
    tried: set[PlanConfig] = set()
    took_s = 0.0
    while len(plans) < most:
        left = [one for one in known.fitting(request) if one.found.config not in tried]
        if not left or (plans and budget.left_s() < 1.5 * took_s):
            break
        one, begin = left[0], time.monotonic()
        tried.add(one.found.config)
        try:
            plans.append(_plan(request, one, min(known.bounds_ns), simulate))
        except InfeasibleError as error:
            if error.smallest_limit is not None:
                schedule = one.found.config.schedule
                seen = error.smallest_limit / max(one.found.peak_bytes)
                known.margins[schedule] = max(known.margin(schedule), seen)
        took_s = max(took_s, time.monotonic() - begin)
    return plans


def _plan(request: Request, one: _Proposal, bound_ns: int, simulate: Simulate) -> Plan:
    """A proposal in full.

    Raises:
        InfeasibleError: its memory, as it is laid out, exceeds the limit.
    """
    config = one.found.config
    space = space_of(request, config, free_rules(config))
    signatures = expanded(one.template.space.graph, space.graph, one.signatures)
    if signatures is None:
        raise InternalError(f"the layers of {request.model_name} are not alike")
    solved = evaluated(config, space, signatures, bound_ns)
    return simulated_plan(request, solved, simulate, bound_ns=min(bound_ns, solved.objective_ns))


def _nothing_found(request: Request, known: _Known, groups: list[MeshGroup]) -> Exception:
    """Why there is no plan."""
    if not known.complete:
        return OutOfTimeError("no plan was found in time; raise the time limit")
    least = min((max(one.found.peak_bytes) for one in known.proposals), default=None)
    problem = f"no plan fits {request.memory_limit_bytes} bytes per device"
    hint = "" if least is None else f"about {least} bytes would do"
    return InfeasibleError(problem, smallest_limit=least, hint=hint)
