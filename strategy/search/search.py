"""Search: which degrees of parallelism, which micro-batches and schedule, which signature for every op.

For every candidate, the layout problem is solved up to a part of the gap that is allowed; candidates are taken best
bound first, and one whose bound is better than the best objective by less than the gap is left out. Then all that may
still be better is solved exactly, for a part of the time. The leading candidates are simulated, by a function that is
passed in, and the fastest is the answer.

What saves memory takes time: no layout of a candidate that computes activations again, gathers parameters per use, or
has something wait on the host, takes less than the best one, memory aside, of the candidate that does nothing of that.
So that comes first, and where it is solved exactly and fits, the others need not be.

A single candidate, all degrees and the schedule pinned, has nothing to be compared with but what saves memory: it is
solved for a part of the time.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from strategy.base.beside import beside
from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError, SbplanError
from strategy.base.interruption import taken_note_of
from strategy.base.status import Status
from strategy.bounds.candidate_certificate import candidate_document
from strategy.bounds.configurations import mesh_groups
from strategy.bounds.layout_bound import saving_aside, takes_no_less
from strategy.bounds.least_steps import least_steps_ns
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import KeptLayers, Offload, PlanConfig, Recompute
from strategy.models import Model
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import CandidateBound, Solved, examine
from strategy.search.candidate.fitted_plan import fitted_plan
from strategy.search.candidate.infeasibility import nothing_fits, tightest
from strategy.search.candidate.neighbouring_layouts import fastest_neighbour
from strategy.search.candidate.rule_based_plans import likely_first, solved_by_rule
from strategy.search.candidate.simulated_plan import Simulate
from strategy.search.certify_candidates import CandidateProofs, certified_candidates
from strategy.search.contradiction import contradictory, leave_no_candidate, leave_no_signature
from strategy.search.deep_search import FAR, deep_search, with_bound
from strategy.search.exchange_choice import with_exchange
from strategy.search.search_result import SearchResult, Watch
from strategy.space.candidate_space import free_rules
from strategy.space.candidates import on_types, saves_most, stand_in
from strategy.space.request import Request

SINGLE_SHARE = 0.125
"""Share of the time limit for a single candidate that has a layout by then: there is nothing to compare it with."""

RULE_BASED_SHARE = 0.3
"""Share of the time limit for a first rule-based plan, where memory is so scarce that a search may find none."""

MOST_DEVICES = 2**20
"""A plan lists every device."""

COMPETITORS = 3
"""Plans that are simulated at least, if need be with rule-based ones."""

EXACT_SHARE = 0.1
"""Share of the time limit within which what is left of the gap is closed, once it is as small as allowed."""

NEIGHBOURS_SHARE = 0.1
"""Share of the time that is left for simulating layouts next to the answer."""

AT_ONCE, MANY_OPS = 2, 300
"""So many candidates are solved at a time, by processes of their own, where a step has so many ops on one rank."""

SOLVING_SHARE = 0.9
"""Share of the time limit after which nothing more is solved, so that there is time to simulate."""


def search(
    request: Request,
    *,
    simulate: Simulate,
    budget: Budget,
    simulated: int = 6,
    watch: Watch | None = None,
) -> SearchResult:
    """The fastest plan found, with its bound.

    Args:
        request: what is searched for.
        simulate: gives the simulated time of a program.
        budget: most of its time is for solving, the rest for simulating, at least one plan.
        simulated: how many leading candidates are simulated.
        watch: is told of every candidate before it is solved.

    Raises:
        ContradictionError: the pins leave no candidate; names a smallest set of them.
        InfeasibleError: no candidate fits the memory limit; names the smallest limit that would do.
        OutOfTimeError: the time ran out before there was any plan.
    """
    start = time.monotonic()
    if request.devices > MOST_DEVICES:
        where, expected = f"cluster {request.cost.cluster.name}", f"at most {MOST_DEVICES}"
        raise InputError("more devices than a plan can list", where=where, got=request.devices, expected=expected)
    short = stand_in(request)
    _check_kept_layers(request, short)
    if short is not None:
        budget.check()
        found = deep_search(request, short, simulate=simulate, budget=budget, simulated=simulated, watch=watch)
        chosen = found.plan
        with taken_note_of() as interruption:
            rest = Budget.of(0.0) if found.interrupted else budget.until(interruption)
            chosen = with_exchange(request, chosen, simulate, rest)
        found = replace(found, plan=chosen, interrupted=found.interrupted or bool(interruption.signum))
    else:
        found = _one_by_one(request, simulate, budget, simulated, watch)
    return replace(found, search_time_s=time.monotonic() - start)


def _one_by_one(
    request: Request, simulate: Simulate, budget: Budget, simulated: int, watch: Watch | None
) -> SearchResult:
    """The fastest plan of candidates that are solved one by one; see `search`."""
    start = time.monotonic()
    if request.cost.cluster.groups:  # stages are solved under one limit, which the smallest device has
        smallest = request.cost.cluster.device.memory_bytes
        request = replace(request, memory_limit_bytes=min(request.memory_limit_bytes, smallest))
    time_limit_s = budget.left_s()
    single, rule_based = (budget.share(part) for part in (SINGLE_SHARE, RULE_BASED_SHARE))
    solving = _Time(budget.share(SOLVING_SHARE), budget.share(EXACT_SHARE))
    quick_ns = _quick_bounds(request, budget)
    candidates, known = tuple(quick_ns), _known(request, quick_ns)
    looked_at, interrupted = known.alone, False
    try:
        if looked_at:
            _solve_each(request, looked_at, known, single, watch, 0.0)
            if known.solved:
                solving = _Time(single, single)
            elif not known.complete:
                looked_at, known = (), _known(request, quick_ns)
        else:
            known.solved = _first_by_rule(request, candidates, rule_based)
    except KeyboardInterrupt:
        if not _have_something(request, candidates, known):
            raise
        interrupted, simulated = True, 1
    plans: list[Plan] = []
    while not plans:
        try:
            done = known.refused or looked_at
            if not interrupted or known.refused:
                _solve_all(request, [c for c in candidates if c not in done], known, solving, watch)
            if not known.solved:
                known.solved = [_last_resort(request, candidates, known, solving.all, time_limit_s)]
            wanted = COMPETITORS - len(known.solved) if request.incumbents and not interrupted else 0
            known.solved += solved_by_rule(request, known.beaten_best_first, wanted, solving.all)
        except KeyboardInterrupt:
            if interrupted or not _have_something(request, candidates, known):
                raise
            interrupted, simulated = True, 1
        with taken_note_of() as interruption:
            plans = _simulated(request, known, simulate, most=simulated, budget=budget.until(interruption))
        interrupted |= bool(interruption.signum)
        if interruption.signum and not plans:
            raise KeyboardInterrupt
    chosen, stopped = _finished(request, plans[0], known, simulate, Budget.of(0.0) if interrupted else budget)
    status, took_s = _status(chosen, known), time.monotonic() - start
    chosen = chosen.claiming(replace(chosen.claims, status=str(status)))
    return SearchResult(chosen, status, tuple(plans[1:]), len(candidates), took_s, interrupted or stopped)


def _finished(request: Request, plan: Plan, known: _Known, simulate: Simulate, budget: Budget) -> tuple[Plan, bool]:
    """(the plan with its certificate, its neighbours and exchanges looked at; whether a signal ended that early)."""
    with taken_note_of() as interruption:
        rest = budget.until(interruption)
        plan = _certified(request, plan, known.proofs)
        plan = fastest_neighbour(request, plan, simulate, rest.share(NEIGHBOURS_SHARE))
        plan = with_exchange(request, plan, simulate, rest)
    return plan, bool(interruption.signum)


def _certified(request: Request, plan: Plan, proofs: CandidateProofs) -> Plan:
    """A plan with the certificate of its bound, which is what is proved, if certificates speak of what is pinned."""
    bound_ns = math.floor(plan.claims.lower_bound_s * 1e9)
    certificate, proved_ns = certified_candidates(request, proofs, bound_ns)
    if certificate is None:
        return plan
    if proved_ns < bound_ns:
        plan = with_bound(plan, proved_ns / 1e9, Status.FEASIBLE)
    return plan.claiming(certificate=candidate_document(certificate))


def _have_something(request: Request, candidates: Sequence[PlanConfig], known: _Known) -> bool:
    """Whether there is a layout to end with at once, if need be a rule-based one; the bound is the quick one then."""
    for config in candidates:
        known.leave_out(config, known.bound_ns(config))
    if not known.solved and request.incumbents:
        known.solved = solved_by_rule(request, likely_first(request, candidates), 1, UNLIMITED)
    return bool(known.solved)


@dataclass(frozen=True, slots=True)
class _Time:
    """What is left for solving: in all, and for closing what is left of a gap that is as small as allowed."""

    all: Budget
    exactly: Budget


@dataclass(slots=True)
class _Known:
    """What a search has found out so far.

    `quick_ns` has the quick bound of every candidate, `bounds_ns` one per candidate that may have a layout;
    `free_bounds_ns`, by what candidates have in common that differ in what saves memory, the bounds of some, memory
    aside, which hold for those that take no less, unless layouts are pinned (`derives`). `without` are candidates that
    have no layout; `refused` those that have layouts by their lifetimes, but none was found whose memory fits as it is
    laid out.
    """

    derives: bool
    quick_ns: dict[PlanConfig, int] = field(default_factory=dict)
    least_saving: dict[PlanConfig, PlanConfig] = field(default_factory=dict)
    solved: list[Solved] = field(default_factory=list)
    beaten: list[tuple[int, PlanConfig]] = field(default_factory=list)
    without: set[PlanConfig] = field(default_factory=set)
    bounds_ns: dict[PlanConfig, int] = field(default_factory=dict)
    refused: list[PlanConfig] = field(default_factory=list)
    free_bounds_ns: dict[PlanConfig, dict[PlanConfig, int]] = field(default_factory=dict)
    conflict: InfeasibleError | None = None
    complete: bool = True
    proofs: CandidateProofs = field(default_factory=CandidateProofs)

    def begin(self, quick_ns: Mapping[PlanConfig, int]) -> None:
        """Take note of candidates with their quick bounds, of those that are alike what saves least memory first."""
        self.quick_ns.update(quick_ns)
        for config in quick_ns:
            known = self.least_saving.setdefault(saving_aside(config), config)
            if takes_no_less(known, config):
                self.least_saving[saving_aside(config)] = config

    @property
    def alone(self) -> tuple[PlanConfig, ...]:
        """The candidate that all others save more memory than and are alike otherwise, if there is one."""
        return tuple(self.least_saving.values()) if len(self.least_saving) == 1 else ()

    @property
    def best_ns(self) -> int | None:
        """The best objective."""
        return min((one.objective_ns for one in self.solved), default=None)

    @property
    def beaten_best_first(self) -> list[PlanConfig]:
        """Candidates that were proved no better than another, best bound first."""
        return [config for _, config in sorted(self.beaten, key=lambda pair: pair[0])]

    def bound_ns(self, config: PlanConfig) -> int:
        """What is known of a candidate, by itself or by those that save less memory."""
        alike = self.free_bounds_ns.get(saving_aside(config), {}) if self.derives else {}
        derived = (bound_ns for plainer, bound_ns in alike.items() if takes_no_less(config, plainer))
        return max(self.quick_ns.get(config, 0), self.bounds_ns.get(config, 0), *derived)

    def waits(self, config: PlanConfig, few: Sequence[PlanConfig]) -> bool:
        """Whether more will be known of a candidate when those are solved that are to be solved now."""
        return self.derives and self.least_saving[saving_aside(config)] in few

    def raise_bound(self, config: PlanConfig, bound_ns: int) -> None:
        """Take note that no layout of a candidate takes less."""
        self.bounds_ns[config] = max(self.bounds_ns.get(config, 0), bound_ns)

    def refuse(self) -> None:
        """None of the solved candidates fits: go on without them; others may have been beaten by them alone."""
        self.refused += [one.config for one in self.solved]
        self.solved, self.beaten = [], []

    def leave_out(self, config: PlanConfig, bound_ns: int) -> None:
        """Take note of a candidate that there was no time for."""
        self.complete = False
        self.raise_bound(config, bound_ns)

    def learn(self, config: PlanConfig, examined: CandidateBound, before_ns: int) -> None:
        """Take note of a solved candidate that had the bound `before_ns`."""
        self.proofs.learn(config, examined)
        alike = self.free_bounds_ns.setdefault(saving_aside(config), {})
        alike[config] = max(examined.free_bound_ns, alike.get(config, 0))
        if examined.bound_ns is None:
            self.without.add(config)
            return
        self.raise_bound(config, max(before_ns, examined.bound_ns))
        if examined.solved is not None:
            self.solved = [one for one in self.solved if one.config != config] + [examined.solved]
        elif config not in (one.config for one in self.solved):
            self.beaten.append((examined.bound_ns, config))


def _check_kept_layers(request: Request, short: Model | None) -> None:
    """Layers may keep what others compute again where a search says so of layers that are alike."""
    if request.pins.kept_layers is not KeptLayers.ANY:
        return
    where, hint = "pins: [config] kept_layers", "leave kept_layers out"
    if request.pins.trainer is not None:
        got = f"trainer {request.pins.trainer}"
        raise InputError("no trainer that is written for can be told of single layers", where=where, got=got, hint=hint)
    if short is None or request.cost.cluster.groups:
        got = "nodes of several types" if request.cost.cluster.groups else "few devices, unlike layers, or other pins"
        raise InputError("layers are not searched as alike ones", where=where, got=got, hint=hint)


def _known(request: Request, quick_ns: Mapping[PlanConfig, int]) -> _Known:
    """What a search knows before anything is solved."""
    known = _Known(derives=not request.pins.layouts)
    known.begin(quick_ns)
    return known


def _quick_bounds(request: Request, budget: Budget) -> dict[PlanConfig, int]:
    """Every candidate with its quick bound, best first; of those that are alike what saves least memory."""
    groups = mesh_groups(request, partial(least_steps_ns, least_work(request)), budget)
    pairs = [pair for group in groups for pair in zip(group.configs, group.bounds_ns, strict=True)]
    found = [(one, bound_ns) for config, bound_ns in pairs for one in on_types(request, config)]
    if not found:
        raise contradictory(request, leave_no_candidate, budget)
    ordered = sorted(found, key=lambda pair: (pair[1], pair[0].pp, pair[0].tp, pair[0].num_micro_batches))
    return dict(ordered)


def _first_by_rule(request: Request, candidates: Sequence[PlanConfig], budget: Budget) -> list[Solved]:
    """One candidate laid out by a rule, where the state of the training does not fit on one device; else none."""
    if request.state_bytes <= request.memory_limit_bytes or not request.incumbents:
        return []
    plain = [config for config in candidates if config.offload is Offload.NONE]
    return solved_by_rule(request, likely_first(request, plain or candidates), 1, budget)


def _solve_all(
    request: Request, candidates: Sequence[PlanConfig], known: _Known, time: _Time, watch: Watch | None
) -> None:
    """Solve every candidate that may be better than the best so far, while there is time: by the gap, then exactly."""
    if request.gap:
        _solve_each(request, candidates, known, time.all, watch, request.gap)
    if not request.gap:
        _solve_each(request, candidates, known, time.all, watch, 0.0)
    elif known.complete:
        _solve_each(request, candidates, known, time.exactly, watch, 0.0)
        known.complete = True


def _solve_each(
    request: Request, candidates: Sequence[PlanConfig], known: _Known, budget: Budget, watch: Watch | None, gap: float
) -> None:
    """Solve every candidate whose bound is better than the best so far by more than the gap, while there is time.

    The best bound is next, by what is known by then.
    """
    numbers = {config: number for number, config in enumerate(candidates) if config not in known.without}
    left = [(known.bound_ns(config), number, config) for config, number in numbers.items()]
    heapq.heapify(left)
    together = _together(request)
    while left:
        few: list[PlanConfig] = []
        waiting: list[tuple[int, int, PlanConfig]] = []
        while left and len(few) < together:
            bound_ns, number, config = heapq.heappop(left)
            before_ns, best_ns = known.bound_ns(config), known.best_ns
            if before_ns > bound_ns:
                heapq.heappush(left, (before_ns, number, config))
            elif best_ns is not None and before_ns >= (1 - gap) * best_ns:
                known.raise_bound(config, before_ns)
            elif budget.is_over():
                known.leave_out(config, before_ns)
            elif known.waits(config, few):
                waiting.append((bound_ns, number, config))
            else:
                few.append(config)
                if watch is not None:
                    watch(number, len(candidates), config, min((*known.bounds_ns.values(), before_ns)), best_ns)
        for one in waiting:
            heapq.heappush(left, one)
        tasks = [partial(examine, request, c, free_rules(c), budget, known.best_ns, gap=gap) for c in few]
        for config, examined in zip(few, beside(tasks), strict=True):
            before_ns = known.bound_ns(config)
            if isinstance(examined, CandidateBound):
                known.learn(config, examined, before_ns)
                known.complete = known.complete and not budget.is_over()
            elif isinstance(examined, OutOfTimeError):
                known.leave_out(config, before_ns)
            elif isinstance(examined, InfeasibleError):
                known.conflict = examined
                known.without.add(config)
                known.proofs.learn_no_signatures(config)
            else:
                raise examined


def _last_resort(
    request: Request, candidates: Sequence[PlanConfig], known: _Known, budget: Budget, time_limit_s: float
) -> Solved:
    """The layout of a candidate that holds least, if it fits; of a single one, in want of time, the rule-based one.

    Raises:
        OutOfTimeError: there was no time to look at all candidates.
        InfeasibleError: the pins contradict each other, or there is too little memory.
    """
    if not known.complete:
        rule_based = solved_by_rule(request, known.alone, 1, UNLIMITED) if request.incumbents else []
        if rule_based:
            return rule_based[0]
        raise OutOfTimeError(f"no plan was found within {time_limit_s:.3g} s; raise the time limit")
    if known.conflict is not None and (request.deduction is not None or not known.refused):
        if request.pins.layouts and len(known.without) == len(candidates) and leave_no_signature(request):
            why = str(known.conflict).removeprefix("infeasible: ")
            raise contradictory(request, leave_no_signature, budget, f"\n{why}\n")
        raise known.conflict
    lightest = [config for config in candidates if config.offload is not Offload.NONE and saves_most(request, config)]
    lightest = lightest or sorted(candidates, key=lambda config: not saves_most(request, config))
    nearest, complete = tightest(request, lightest, budget)
    if nearest is None or nearest.nbytes > request.memory_limit_bytes:
        raise nothing_fits(request, nearest, complete=complete)
    known.raise_bound(nearest.solved.config, min(known.quick_ns.values()))
    return nearest.solved


def _simulated(request: Request, known: _Known, simulate: Simulate, *, most: int, budget: Budget) -> list[Plan]:
    """The plans of the leading candidates that fit, fastest first: `most` at most, one at least if any does."""
    leading = sorted(known.solved, key=lambda s: (s.objective_ns, s.config.pp, s.config.tp, s.config.num_micro_batches))
    bound_ns = min((*known.bounds_ns.values(), leading[0].objective_ns))
    plans: list[Plan] = []
    together = _together(request)
    while (
        leading
        and len(plans) < most
        and not (plans and (budget.is_over() or (together > 1 and _is_far(leading[0], plans))))
    ):
        few, leading = leading[:together], leading[together:]
        tasks = [
            partial(fitted_plan, request, one, simulate, bound_ns=bound_ns, budget=budget, needed=not plans and not i)
            for i, one in enumerate(few)
        ]
        found = beside(tasks)
        plans += [one for one in found if isinstance(one, Plan)]
        for error in found:
            if isinstance(error, InfeasibleError):
                known.conflict = known.conflict or error
            elif isinstance(error, OutOfTimeError):
                leading = []
            elif isinstance(error, SbplanError):
                raise error
    if not plans:
        known.refuse()
    return sorted(plans, key=lambda plan: plan.claims.step_time_s)


def _together(request: Request) -> int:
    """How many candidates are looked at at a time."""
    return AT_ONCE if len(least_work(request).graph(Recompute.NONE).ops) >= MANY_OPS else 1


def _is_far(one: Solved, plans: Sequence[Plan]) -> bool:
    """Whether a candidate is so much worse than plans that it will not be simulated to be better."""
    return one.objective_ns / 1e9 > (1 + FAR) * min(plan.claims.objective_s for plan in plans)


def _status(plan: Plan, known: _Known) -> Status:
    if not known.complete:
        return Status.LIMIT
    return Status.OPTIMAL if plan.claims.gap == 0 else Status.FEASIBLE
