"""GPU counts: how many GPUs to train on, when it is done and what it costs.

Every count in question gets the least step of all its configurations, by the bounds that arrays give (level 0 of the
search, see `strategy.bounds.configurations`), without those whose layers alone exceed the memory. Counts that another
one surpasses in days, and in GPU-hours by more than bounds may mislead, are left out; each of the others is searched,
with an even share of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.planning.training_cost import TrainingCost, training_cost
from experiments.studies.job_failures import FailureRates, size_of
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError
from strategy.base.status import Status
from strategy.base.units import format_seconds
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.configurations import mesh_groups
from strategy.bounds.quick_bound import least_work
from strategy.hardware.cluster import Cluster
from strategy.hardware.presets import PRESETS, find_cluster, preset_with
from strategy.layout.config import PlanConfig
from strategy.search.search import MOST_DEVICES
from strategy.search.search_result import SearchResult
from strategy.space.request import Request

SLACK = 0.1
"""Part of the GPU-hours by which a count is worse, by its bound, that is left out: plans lie above bounds unevenly."""


@dataclass(frozen=True, slots=True)
class CountAnswer:
    """What is known of a count of GPUs.

    Attributes:
        request: of that many.
        config: that with the least bound; None where nothing fits, or the pins leave nothing.
        bound_s: no step takes less.
        bound: what training takes at least.
        status: how the search ended; None where there was none, since another count is better in both.
        result: its answer.
        cost: of training by that.
    """

    request: Request
    config: PlanConfig | None = None
    bound_s: float | None = None
    bound: TrainingCost | None = None
    status: Status | None = None
    result: SearchResult | None = None
    cost: TrainingCost | None = None


def clusters_of_gpus(gpu: str, least: int, most: int) -> list[Cluster]:
    """Clusters of whole nodes of a GPU: of the least and the most, and of the powers of two of nodes between them.

    Raises:
        InputError: no such GPU, or the least or the most are no whole nodes.
    """
    name = preset_with(gpu)
    per_node = PRESETS[name].devices_per_node
    for count in (least, most):
        if count % per_node:
            expected = f"a multiple of {per_node}, as many as a node of {name} has"
            raise InputError("no whole nodes", where="--gpus", got=count, expected=expected)
    if most > MOST_DEVICES:
        raise InputError("more than a plan can list", where="--gpus", got=most, expected=f"at most {MOST_DEVICES}")
    ends = least // per_node, most // per_node
    powers = (2**power for power in range(ends[1].bit_length()))
    nodes = sorted({*ends, *(count for count in powers if ends[0] < count < ends[1])})
    return [find_cluster(f"{name}:{count}") for count in nodes]


def bounded(request: Request, tokens: int, rates: FailureRates | None) -> CountAnswer:
    """The least that training takes on the cluster of a request, by the bounds of all configurations that may fit."""
    forms = ClosedForms(request, least_work(request))
    groups = mesh_groups(request, forms.work_bounds_ns)
    pairs = [pair for group in groups for pair in zip(group.bounds_ns, group.configs, strict=True)]
    ordered = sorted(pairs, key=lambda pair: pair[0])
    fitting = ((ns / 1e9, config) for ns, config in ordered if all(forms.fitting([config])))
    bound_s, config = next(fitting, (None, None))
    cost = None if bound_s is None else training_cost(size_of(request), tokens, bound_s, rates)
    return CountAnswer(request, config, bound_s, cost)


def on_front(costs: Sequence[TrainingCost | None], slack: float = 0.0) -> list[bool]:
    """Which no other one surpasses: it takes no more days, and fewer GPU-hours by more than this part."""

    def surpasses(other: TrainingCost, one: TrainingCost) -> bool:
        return other.days <= one.days and other.gpu_hours < (1 - slack) * one.gpu_hours

    there = [cost for cost in costs if cost is not None]
    return [cost is not None and not any(surpasses(other, cost) for other in there) for cost in costs]


def answered(
    requests: Sequence[Request],
    tokens: int,
    rates: FailureRates | None,
    solve: Callable[[Request, Budget], SearchResult],
    budget: Budget,
) -> Iterator[CountAnswer]:
    """Every count in turn: bounded, and searched where it may be on the front of days against GPU-hours.

    Args:
        requests: one per count.
        tokens: to train on.
        rates: at which GPUs fail.
        solve: the search.
        budget: what is left of it is shared out evenly among those that are still to be searched.
    """
    known = [bounded(request, tokens, rates) for request in requests]
    front = on_front([one.bound for one in known], SLACK)
    left = sum(front)
    for one, is_searched in zip(known, front, strict=True):
        if not is_searched:
            yield replace(one, status=Status.INFEASIBLE) if one.config is None else one
            continue
        try:
            result = solve(one.request, budget.share(1 / left))
        except InfeasibleError:
            yield replace(one, status=Status.INFEASIBLE)
        except OutOfTimeError:
            yield replace(one, status=Status.LIMIT)
        else:
            cost = training_cost(size_of(one.request), tokens, result.plan.claims.step_time_s, rates)
            yield replace(one, status=result.status, result=result, cost=cost)
            if result.interrupted:
                return
        left -= 1


def without_others(one: CountAnswer) -> CountAnswer:
    """An answer whose plan stands alone: the others of many counts would take much memory."""
    return one if one.result is None else replace(one, result=replace(one.result, others=()))


def overall(answers: Sequence[CountAnswer]) -> Status:
    """How the searches ended together: infeasible if nothing fits any count, else the least that is proved of all."""
    found = {one.status for one in answers if one.status not in (None, Status.INFEASIBLE)}
    worst = (Status.LIMIT, Status.FEASIBLE, Status.OPTIMAL)
    return next((status for status in worst if status in found), Status.INFEASIBLE)


def table(answers: Sequence[CountAnswer]) -> str:
    """A line per count: its bound, and what its plan takes; `*` where no other plan surpasses it in both."""
    front = on_front([one.cost for one in answers])
    heads = f"{'GPUs':>8}{'days':>11}{'GPU-hours':>14}{'kept':>8}{'step':>10}{'tokens/s':>12}"
    lines = [f"{heads}{'at least':>14}  status"]
    for one, best in zip(answers, front, strict=True):
        least = "" if one.bound is None else f"{one.bound.days:.4g} days"
        said = _ended(one)
        if one.cost is None or one.result is None:
            lines.append(f"{one.request.devices:>8}{'':>55}{least:>14}  {said}")
            continue
        step_s = one.result.plan.claims.step_time_s
        figures = f"{one.cost.days:>11.4g}{one.cost.gpu_hours:>14.4g}{_kept(one.cost):>8}{format_seconds(step_s):>10}"
        rate = one.result.plan.tokens_per_step / step_s
        lines.append(f"{one.request.devices:>8}{figures}{rate:>12.4g}{least:>14}  {said}{' *' * best}")
    return "\n".join(lines)


def _kept(cost: TrainingCost) -> str:
    """The share of the time that failures and saves leave."""
    return "100%" if cost.lost is None else f"{cost.lost.goodput:.1%}"


def _ended(one: CountAnswer) -> str:
    """How the search of a count ended."""
    if one.status is None:
        return "not searched: another count takes less of both"
    if one.result is None:
        return "nothing fits" if one.status is Status.INFEASIBLE else "no plan in time; raise --time-limit"
    return f"{one.status}, gap {one.result.plan.claims.gap:.1%}"
