"""Deep search: the best configuration of a model whose layers are alike.

Boxes of configurations are refined (`refinement`, or `mixed_refinement` where nodes are of several types). The leading
proposals are laid out in full, placed in memory and simulated: a first one early, which tells what fits and how long a
plan takes, the others at the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from strategy.base.beside import beside
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError, PlanError
from strategy.base.interruption import put_off, taken_note_of
from strategy.base.status import Status
from strategy.base.units import format_bytes
from strategy.bounds.certificate import document
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.configurations import MeshGroup, mesh_groups
from strategy.bounds.least_work import LeastWork
from strategy.bounds.quick_bound import least_work
from strategy.models import Model
from strategy.plan.plan import Plan
from strategy.search.box import Box
from strategy.search.candidate.candidate_solve import solved_as
from strategy.search.candidate.simulated_plan import Simulate, planning_s, simulated_plan
from strategy.search.contradiction import contradictory, leave_no_candidate
from strategy.search.exchange_choice import fitted_by_exchange
from strategy.search.full_layout import priced_in_full, solved_in_full
from strategy.search.hosted_cuts import crowded_boxes, is_like_one, waits_on_hosts, with_hosts
from strategy.search.lightest import host_may_hold, nothing_fits_deep
from strategy.search.mixed_refinement import MixedRefinement
from strategy.search.refinement import Refinement
from strategy.search.search_result import SearchResult, Watch
from strategy.search.search_state import LayoutProposal, SearchState, held_alike
from strategy.search.workers import Workers, workers_of
from strategy.space.request import Pins, Request

FIRST_SHARE = 0.15
"""Share of the time after which a first plan is made, which tells what fits and how long a plan takes."""
LATE_SHARE, NEAR = 0.25, 1.5
"""Share of the time until which it waits for a proposal that is this near to the bound, as a multiple of it."""
FIRST_TRIES = 3
"""So many proposals are tried for it."""
AFTER_REFUSED = 0.02
"""What is slower than a proposal that did not fit by more than this part, or than a plan, waits until others have been
looked for in its place."""
MOST_RETURNS, RETURN_SHARE = 6, 0.4
"""So often it looks for more where plans are not as good as their proposals were; where one did not fit, for such a
share of the time that is left: what is found then may not fit either."""
HURRY_S = 5.0
"""So long, at most, each of these looks for something lighter where an interrupted search has no plan."""
AT_A_TIME = 2
"""So many plans are made side by side."""
REFINING_SHARE = 0.75
"""Share of the time after which no further group is refined ahead of plans."""
LAST_SHARE = 0.9
"""The same where there are plans: what is left then is for one more, and for the certificate."""
MOST_WIDENED = 2
"""So often hosts are let in."""
MUCH, AMPLE = 0.02, 1.5
"""Refining ends before that where something is likely to be better by so much, once there is this multiple of the time
left that a plan of it takes."""
LONG_SAMPLE = 16384
"""Tokens; where nothing fits, a sample of more may be the reason: by default it is as long as the model's context."""
FAR = 0.06
"""What takes longer than a plan by more than this part, by the objective, is not simulated beside it; nor is anything
that takes longer where there are groups left to refine, which may be faster."""
ALIKE = 5e-3
"""By this part plans are told apart by simulation: of those that take hardly more, the one with the least objective."""
FOR_PROOF = 0.02
"""By this part what is proved may be slower: less than what objectives and simulations differ by (3 % at worst)."""
ROOM = 0.08
"""Share of the memory that a proposal leaves free which is as good as certain to fit."""
LAST_CHANCES = 6
"""Plans for which there is time yet, where one did not fit, before it is time for one that is sure to."""
SURE = 0.15
"""By this part what holds less may take longer, to be planned in place of what leads where there is time for one."""


def deep_search(
    request: Request, short: Model, *, simulate: Simulate, budget: Budget, simulated: int, watch: Watch | None
) -> SearchResult:
    """The fastest plan found, with its bound; see `search`.

    Raises:
        ContradictionError: the pins leave no configuration.
        InfeasibleError: none fits the memory limit.
        OutOfTimeError: the time ran out before there was any plan.
    """
    if request.cost.cluster.groups:
        return _searched(request, short, None, simulate=simulate, budget=budget, simulated=simulated, watch=watch)
    with workers_of(request, short) as workers:  # which load machine code while configurations are listed
        return _searched(request, short, workers, simulate=simulate, budget=budget, simulated=simulated, watch=watch)


def _searched(
    request: Request,
    short: Model,
    workers: Workers | None,
    *,
    simulate: Simulate,
    budget: Budget,
    simulated: int,
    watch: Watch | None,
) -> SearchResult:
    start = time.monotonic()
    work = least_work(request)
    groups = mesh_groups(request, ClosedForms(request, work).work_bounds_ns, budget)
    if not groups:
        raise contradictory(request, leave_no_candidate, budget)
    shares = FIRST_SHARE, LATE_SHARE, REFINING_SHARE, LAST_SHARE
    first_budget, late, all_refining, last = (budget.share(part) for part in shares)
    refinement: MixedRefinement | Refinement
    if workers is None:
        refinement = MixedRefinement(request, short, work, groups, first_budget, watch)
    else:
        refinement = Refinement(request, short, work, groups, first_budget, watch, workers)
    known, interrupted = refinement.known, False
    plans: list[Plan] = []
    try:
        with refinement:
            refinement.run()
            for more, near in ((late, NEAR), (all_refining, math.inf)):
                refinement.go_on(more, near=near)
            first = partial(_first_plan, request, known, simulate, budget, plans, most_tries=FIRST_TRIES)
            refinement.meanwhile(first, all_refining, _leading_s(request, known))
            is_time = partial(_is_time_to_plan, request, refinement, budget)
            if isinstance(refinement, Refinement) and request.pins.offload is None and host_may_hold(request):
                groups = _let_hosts_in(request, refinement, groups, work, all_refining, is_time)
            refinement.go_on(all_refining, is_enough=is_time)
            # One by one: an interruption leaves those that are made.
            far = FAR if known.complete else 0.0
            rest = _less(budget, refinement.certifying_s) if plans else budget
            plans.extend(_plans(request, known, simulate, simulated - len(plans), rest, far=far))
            _look_for_more(request, refinement, simulate, budget, last, plans)
    except KeyboardInterrupt:
        if not plans and not known.fitting(request):
            raise
        interrupted, known.complete = True, False
        for _ in range(FIRST_TRIES):  # what was likely to fit may not have
            if not plans:
                refinement.go_on(Budget.of(min(HURRY_S, budget.left_s())), near=math.inf)
                _first_plan(request, known, simulate, budget, plans, hurries=True)
        if not plans:
            raise
    if not plans:
        if known.unplanned and not last.is_over():  # nothing else is left
            raise next(iter(known.unplanned.values()))
        if not known.complete and budget.is_over():
            raise OutOfTimeError(
                "no plan was found in time; raise the time limit (--time-limit), or leave less open (--pin)"
            )
        if not known.complete:
            raise _none_found(request, known)
        raise nothing_fits_deep(request, short, work, groups, known.proposals, budget)
    best = best_of(plans, request.gap, refinement.bound_ns)
    others = sorted((plan for plan in plans if plan is not best), key=lambda plan: plan.claims.step_time_s)
    objective_ns = round(best.claims.objective_s * 1e9)
    is_enough = known.complete or (1 - request.gap) * objective_ns <= refinement.bound_ns
    status = Status.FEASIBLE if is_enough and not interrupted else Status.LIMIT
    certificate, bound_ns = None, min(refinement.bound_ns, objective_ns)
    with taken_note_of() as interruption:
        certificate, bound_ns = refinement.certificate(objective_ns)
    interrupted |= bool(interruption.signum)
    chosen = with_bound(best, bound_ns / 1e9, status)
    if certificate is not None:
        chosen = chosen.claiming(certificate=document(certificate))
    count = sum(len(group.configs) for group in groups)
    return SearchResult(chosen, status, tuple(others), count, time.monotonic() - start, interrupted)


def _let_hosts_in(
    request: Request,
    refinement: Refinement,
    groups: list[MeshGroup],
    work: LeastWork,
    budget: Budget,
    is_time: Callable[[], bool],
) -> list[MeshGroup]:
    """Refine, and let hosts hold some of a few more cuts each time that it seems worth it; the groups of the space."""

    def crowded() -> list[Box]:
        return crowded_boxes(refinement.boxes, refinement.best_ns)

    for _ in range(MOST_WIDENED):
        refinement.go_on(budget, is_enough=lambda: is_time() or bool(crowded()))
        found = crowded()
        if budget.is_over() or is_time() or not found:
            break
        request = with_hosts(request, found)
        try:
            groups = mesh_groups(request, ClosedForms(request, work).work_bounds_ns, budget)
        except OutOfTimeError:  # the space stays as it is
            break
        new = refinement.widen(request, groups, [one for one in groups if waits_on_hosts(one.config, found)])
        refinement.ask_for_layouts([box for box in new if is_like_one(box, found)], budget)
    return groups


def _look_for_more(
    request: Request,
    refinement: MixedRefinement | Refinement,
    simulate: Simulate,
    budget: Budget,
    last: Budget,
    plans: list[Plan],
) -> None:
    """Refine, and plan what is found, until enough is proved of a plan or the `last` time for it is over."""
    known = refinement.known
    for more in reversed(range(MOST_RETURNS)):  # what was thought to fit may not have
        answer_s = best_of(plans, request.gap, refinement.bound_ns).claims.objective_s if plans else 0.0
        known.answer_ns = answer_s * 1e9
        if (plans and (1 - request.gap) * known.answer_ns <= refinement.bound_ns) or last.is_over():
            break
        rest = _less(budget, refinement.certifying_s) if plans else budget
        most = last.at_most(_less(rest, _leading_s(request, known)).left_s())
        refinement.go_on(most.share(RETURN_SHARE) if known.refused and more else most)
        found = list(_plans(request, known, simulate, 1, rest, far=0.0))
        if known.is_hopeful and not found:
            refinement.balance()
        known.is_hopeful |= not found
        plans.extend(found)
    if not plans:
        plans.extend(_plans(request, known, simulate, 1, budget, hurries=True))


def _less(budget: Budget, seconds: float) -> Budget:
    """What is left where so many seconds are for something else."""
    return budget.at_most(max(0.0, budget.left_s() - seconds))


def best_of(plans: Sequence[Plan], gap: float, bound_ns: float) -> Plan:
    """The fastest as simulated; of those that can hardly be told from it, the one of which most is proved.

    One that is proved to be within `gap`, a part of the objective, of the bound may be a little slower for that.
    """
    least_s = min(plan.claims.step_time_s for plan in plans)
    proved = [plan for plan in plans if (1 - gap) * plan.claims.objective_s * 1e9 <= bound_ns]
    for among, part in ((proved, ALIKE), (proved, FOR_PROOF), (plans, ALIKE)):
        alike = [plan for plan in among if plan.claims.step_time_s <= (1 + part) * least_s]
        if alike:
            break
    return min(alike, key=lambda plan: (plan.claims.objective_s, plan.claims.step_time_s))


def _first_plan(
    request: Request,
    known: SearchState,
    simulate: Simulate,
    budget: Budget,
    plans: list[Plan],
    *,
    most_tries: float = math.inf,
    hurries: bool = False,
) -> None:
    """Add a plan to those that there are; an interruption waits for it: without one there is nothing to end with.

    Or two at a time, where nothing is left to do beside that.
    """
    with put_off():
        count = AT_A_TIME if known.complete else 1
        plans += _plans(request, known, simulate, count, budget, most_tries=most_tries, hurries=hurries)


def _plans(
    request: Request,
    known: SearchState,
    simulate: Simulate,
    most: int,
    budget: Budget,
    *,
    most_tries: float = math.inf,
    far: float = FAR,
    hurries: bool = False,
) -> Iterator[Plan]:
    """The plans of the leading proposals that fit, as many as there is time for; or one more, made beside them.

    None takes longer than a plan that there is by more than `far`, a part of it, or than plans so far leave in doubt.
    Where one did not fit, what is much slower is not tried either, unless it `hurries`.

    The first is of a proposal that there is likely to be time for, if there is one; else of that which takes least.
    """
    count, tries, refused_ns = 0, 0, math.inf
    while count < most and tries < most_tries and not budget.is_over():
        tries += 1
        most_ns = (1 + min(far, known.doubt)) * known.planned_ns
        left = [one for one in known.untried(request) if known.likely_ns(one) <= most_ns]
        soon_ns = math.inf if hurries else min(known.planned_ns, (1 + AFTER_REFUSED) * refused_ns)
        if left and refused_ns < math.inf and known.likely_ns(left[0]) > soon_ns:
            break
        in_time = [one for one in left if known.pace * _planning_s(request, one) <= budget.left_s()]
        if not left or (math.isfinite(known.planned_ns) and not in_time):
            break
        if in_time and math.isinf(known.planned_ns) and _is_last_chance(request, known, in_time[0], budget):
            in_time = [_surest(request, known, in_time[0], budget)]
        chosen = _beside_each_other(request, known, in_time, min(AT_A_TIME, most))
        chosen = chosen or [min(left, key=lambda one: _planning_s(request, one))]
        tasks = [partial(_plan, request, one, simulate, budget) for one in chosen]
        begin = time.monotonic()
        for one, found in zip(chosen, beside(tasks), strict=True):
            known.tried[one.found.config] = one.found.step_ns
            if isinstance(found, Plan):
                count += 1
                known.planned[one.found.config] = one.found.step_ns
                known.learn_time(one, found.claims.objective_s, found.claims.step_time_s)
                known.learn(one, max(found.claims.peak_memory_bytes))
                yield found
            elif isinstance(found, OutOfTimeError):
                known.complete = False
            elif isinstance(found, InfeasibleError):
                known.refused, refused_ns = True, min(refused_ns, one.found.step_ns)
                if found.smallest_limit is not None:
                    known.learn(one, found.smallest_limit)
                if not known.fits(request, one):  # others of its configuration may hold less
                    known.forget(one.found.config)
            elif isinstance(found, PlanError):  # too large to be lowered: others may be smaller
                known.unplanned[one.found.config] = found
            else:
                raise found
        known.paces.append((time.monotonic() - begin) / max(_planning_s(request, one) for one in chosen))
    known.complete &= count > 0 or not budget.is_over()


def _is_last_chance(request: Request, known: SearchState, leading: LayoutProposal, budget: Budget) -> bool:
    """Whether no other plan could be made after this one; where one did not fit, as may be so again, nor some more."""
    chances = LAST_CHANCES if known.refused else 2
    return budget.left_s() < chances * known.pace * _planning_s(request, leading)


def _surest(request: Request, known: SearchState, leading: LayoutProposal, budget: Budget) -> LayoutProposal:
    """Of what is hardly slower than the leading proposal, and can be planned in time, that which is to hold least."""
    most_ns, most_s = (1 + SURE) * known.likely_ns(leading), budget.left_s() / known.pace
    near = [
        one
        for one in known.fitting(request)
        if one.found.config not in known.tried
        and known.likely_ns(one) <= most_ns
        and _planning_s(request, one) <= most_s
    ]
    return min(
        near,
        key=lambda one: known.margin(one.found.config, one.signatures) * max(one.found.peak_bytes),
        default=leading,
    )


def _beside_each_other(
    request: Request, known: SearchState, leading: list[LayoutProposal], most: int
) -> list[LayoutProposal]:
    """The first of these, and next to it, where no plan has shown what its schedule holds, one with room to spare."""
    unknown = bool(leading) and held_alike(leading[0].found.config) not in known.margins
    near = [one for one in leading[1:] if known.likely_ns(one) <= (1 + FAR) * known.likely_ns(leading[0])]
    roomy = [one for one in near if unknown and known.fits(request, one, spare=ROOM)]
    return [*leading[:1], *(roomy or leading[1:])[:1]][:most]


def _planning_s(request: Request, one: LayoutProposal) -> float:
    """About how long the plan of a proposal takes."""
    return planning_s(one.deep_ops, one.found.config)


def _leading_s(request: Request, known: SearchState) -> float:
    """About how long the plan of the leading proposal takes, if there is one."""
    return max((known.pace * _planning_s(request, one) for one in known.fitting(request)[:1]), default=0.0)


def _is_time_to_plan(request: Request, refinement: MixedRefinement | Refinement, budget: Budget) -> bool:
    """Whether there is hardly more time left than for a plan that is likely to be much better than those so far.

    What is found later would not be planned in time.
    """
    known = refinement.known
    better = [one for one in known.fitting(request)[:1] if known.likely_ns(one) < (1 - MUCH) * known.planned_ns]
    return bool(better) and _less(budget, refinement.certifying_s).left_s() < AMPLE * _leading_s(request, known)


def _plan(request: Request, one: LayoutProposal, simulate: Simulate, budget: Budget) -> Plan:
    """A proposal in full; nothing is claimed to bound it yet.

    Raises:
        InfeasibleError: its memory, as it is laid out, exceeds the limit.
        OutOfTimeError: there is not enough time.
    """
    priced = priced_in_full(request, one, budget)
    if request.is_small:
        priced = solved_in_full(request, one, priced, budget)
    solved = solved_as(one.config(request.model.layers), priced, 0, budget)
    try:
        quick = not request.is_small  # others are proposed sooner than all of this one's stages are laid out
        return simulated_plan(request, solved, simulate, bound_ns=0, priced=priced, budget=budget, least_excess=quick)
    except InfeasibleError as error:
        return fitted_by_exchange(request, solved, priced, error, simulate, budget)


def _none_found(request: Request, known: SearchState) -> OutOfTimeError:
    """Some configuration may fit, by all that is certain, but no layout of it was found that does."""
    tried = (one for one in known.proposals if one.found.config not in known.unplanned)
    needed = min(
        (known.margin(one.found.config, one.signatures) * max(one.found.peak_bytes) for one in tried), default=None
    )
    nearest = "" if needed is None else f"; the nearest holds about {format_bytes(needed)}"
    limit = format_bytes(request.memory_limit_bytes)
    tokens = request.model.tokens_per_sample
    shorter = f"shorter samples than of {tokens:,} tokens, " if tokens > LONG_SAMPLE else ""
    pinned = "leave more open (recompute, zero_stage, degrees), " if request.pins != Pins() else ""
    hosted = host_may_hold(request)
    return OutOfTimeError(
        f"no layout was found that fits {limit} of a device, and none is proved not to{nearest}; {pinned}"
        f"{hosted and hosted + ', '}take {shorter}more devices, or more time"
    )


def with_bound(plan: Plan, bound_s: float, status: Status) -> Plan:
    """A plan that claims a bound of all, which its own objective may be below by what boxes are refined up to."""
    objective_s = plan.claims.objective_s
    bound_s = min(bound_s, objective_s)
    gap = (objective_s - bound_s) / objective_s
    status = Status.OPTIMAL if gap == 0 else status
    return plan.claiming(replace(plan.claims, lower_bound_s=bound_s, gap=gap, status=str(status)))
