"""Why not: a plan against the best one with other pins, or what stands in the way of these."""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments.explanation.constraint import Constraint, dividing_constraint, memory_constraint
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import ContradictionError, InfeasibleError, OutOfTimeError
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.configurations import mesh_groups
from strategy.bounds.quick_bound import least_work
from strategy.plan.plan import Plan
from strategy.search.contradiction import contradictory, leave_no_candidate
from strategy.search.search import search
from strategy.search.search_result import SearchResult
from strategy.space.request import Pins, Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """There is no plan with the pins: why, in the words of the search, and the constraint that binds, if it is one.

    `plan` is the one that there is once a memory constraint has given way.
    """

    reason: str
    constraint: Constraint | None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Undecided:
    """The time was over before there was a plan with the pins, or a proof that there is none.

    `bound_s` is what no step with the pins takes less than, by the least work of its ops; None where it is not known.
    """

    limit_s: float
    bound_s: float | None


def pinned_request(plan: Plan, pins: Pins) -> Request:
    """What a plan was searched for, with these pins and no others."""
    return Request(
        model_name=plan.model_name,
        model=plan.model,
        training=replace(plan.training, num_micro_batches=1),
        cost=plan.cost,
        memory_limit_bytes=plan.claims.memory_limit_bytes,
        pins=pins,
    )


def why_not(request: Request, budget: Budget) -> SearchResult | Refusal | Undecided:
    """The best plan with the pins of a request, or why there is none, or what is known where the time was over."""
    limit_s = budget.left_s()
    if leave_no_candidate(request):
        reason = contradictory(request, leave_no_candidate, budget.share(1 / 4))
        return Refusal(str(reason), dividing_constraint(request, budget))
    try:
        return search(request, simulate=simulated_step, budget=budget.share(1 / 2))
    except ContradictionError as error:
        return Refusal(str(error), None)
    except OutOfTimeError:
        return Undecided(limit_s, least_step_s(request))
    except InfeasibleError as error:
        try:
            constraint, plan = memory_constraint(request, error.smallest_limit, budget)
        except OutOfTimeError:  # that nothing fits is known, not how much memory would do
            return Refusal(str(error), None)
        return Refusal(str(error), constraint, plan)


def least_step_s(request: Request) -> float | None:
    """What no step that a request allows takes less than, by arrays over all configurations, without a search."""
    if request.cost.cluster.groups:
        return None
    groups = mesh_groups(request, ClosedForms(request, least_work(request)).work_bounds_ns)
    return min((group.bound_ns / 1e9 for group in groups), default=None)
