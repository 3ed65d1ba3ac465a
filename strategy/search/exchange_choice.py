"""Exchange choice: how large the buckets are in which a plan exchanges its gradients, and over how many streams.

Signatures are chosen with every exchange priced by itself. Then the plan is simulated with a few sizes of buckets, and
the fastest that fits is kept; of equally fast ones that with the largest buckets and the fewest streams. Where memory
lies, which takes most of a plan's time to find, is looked at of the fastest alone.

Where collectives run beside computation a bucket should be large enough for its latency not to matter and small enough
to go off while the backward pass still runs; where they do not, one bucket takes the least latency. Two sizes are
looked at first, which tell whether there is anything to gain: at scale, where exchanges are hidden, there seldom is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from strategy.base.beside import beside
from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError, SbplanError
from strategy.layout.config import PlanConfig
from strategy.layout.objective import Priced
from strategy.lowering.exchange_buckets import bucketable_bytes
from strategy.lowering.lower import lower_priced
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import Solved
from strategy.search.candidate.simulated_plan import (
    Simulate,
    check_simulated_in_time,
    planning_s,
    simulated_plan,
)
from strategy.space.request import Request

COUNTS = (1, 2, 4, 8, 16, 32)
"""Into so many buckets of equal size all gradients would fit; one where exchanges do not run beside computation."""
FIRST = (1, 4)
"""Of these, those that are looked at first."""
WORTH = 1e-3
"""By this part of a step the better of these has to be faster than no buckets, for others to be looked at."""
STREAMS = 2
"""Tried with the best size; two collectives at a time share one link, and hide each other's latency."""
NEARLY = 0.03
"""A layout that exceeds the memory by no more than this share of it is looked at with buckets,"""
SOON_S = 0.5
"""where a plan takes no longer than this: at scale other layouts are worth the time more."""


def with_exchange(request: Request, plan: Plan, simulate: Simulate, budget: Budget) -> Plan:
    """The plan with the exchange of gradients that is simulated to take least, as far as the pins leave it open.

    What does not fit the memory, or is not simulated in time, is left out.

    Raises:
        InfeasibleError: buckets are pinned that do not fit the memory.
    """
    pins = request.pins
    if pins.bucket_bytes is not None:
        pinned = replace(plan.config, bucket_bytes=pins.bucket_bytes, exchange_streams=pins.exchange_streams or 1)
        return _exchanging(request, plan, pinned, simulate, UNLIMITED) if pins.bucket_bytes else plan
    total, sizes = _sizes(plan.priced)
    sized = [replace(plan.config, bucket_bytes=size, exchange_streams=pins.exchange_streams or 1) for size in sizes]
    steps_s: dict[PlanConfig, float] = {}

    def step_of(config: PlanConfig) -> Callable[[], float | Plan]:
        return partial(_step_s, plan, config, simulate, budget)

    def plan_of(config: PlanConfig) -> Callable[[], float | Plan]:
        return partial(_exchanging, request, plan, config, simulate, budget)

    for few in _rounds(len(sizes), lambda i: steps_s[sized[i]]):
        found = _side_by_side([step_of(sized[i]) for i in few], budget)
        steps_s.update(
            (sized[i], one if isinstance(one, float) else math.inf) for i, one in zip(few, found, strict=True)
        )
        if min(steps_s.values()) > (1 - WORTH) * plan.claims.step_time_s:
            return plan
    if not steps_s:
        return plan
    best = min(steps_s, key=lambda config: (steps_s[config], -config.bucket_bytes))
    several = replace(best, exchange_streams=STREAMS)
    has_latency = len(steps_s) == 1 or len(set(steps_s.values())) > 1  # which a second stream hides
    splits = pins.exchange_streams is None and best.bucket_bytes < total and plan.pipeline.overlaps and has_latency
    found = _side_by_side([plan_of(best), *([step_of(several)] if splits else [])], budget)
    plans = {best: found[0]}
    steps_s.update((several, one) for one in found[1:] if isinstance(one, float))
    for config in sorted(steps_s, key=lambda one: (steps_s[one], -one.bucket_bytes, one.exchange_streams)):
        if steps_s[config] >= plan.claims.step_time_s:
            break
        one = plans[config] if config in plans else _side_by_side([plan_of(config)], budget)[0]
        if isinstance(one, Plan) and one.claims.step_time_s < plan.claims.step_time_s:
            return one
    return plan


def _rounds(count: int, step_s: Callable[[int], float]) -> Iterator[list[int]]:
    """Which of so many sizes to look at next, two at a time: two first, then those beside the best, until it stays.

    None between or beside two that take the same: their number of buckets does not matter.
    """
    known: set[int] = set()
    few = [i for i in FIRST if i < count] or list(range(count))
    while few:
        yield few
        known.update(few)
        if len(known) > 1 and len({step_s(i) for i in known}) == 1:
            break
        best = min(sorted(known), key=step_s)
        few = [i for i in (best - 1, best + 1) if 0 <= i < count and i not in known]


def _side_by_side(tasks: Sequence[Callable[[], float | Plan]], budget: Budget) -> list[float | Plan | None]:
    """What some tasks find; None where it does not fit or is not there in time."""
    if budget.is_over():
        return [None] * len(tasks)
    found = beside(tasks)
    for one in found:
        if isinstance(one, SbplanError) and not isinstance(one, InfeasibleError | OutOfTimeError):
            raise one
    return [None if isinstance(one, SbplanError) else one for one in found]


def _step_s(plan: Plan, config: PlanConfig, simulate: Simulate, budget: Budget) -> float:
    """The simulated step of the same layout with another exchange, wherever memory lies."""
    priced = plan.priced.exchanging(config.bucket_bytes, config.exchange_streams)
    program = lower_priced(priced, folds=True, allocates=False, budget=budget)
    check_simulated_in_time(program, budget)
    return simulate(program).step_time_s


def fitted_by_exchange(
    request: Request, solved: Solved, priced: Priced, error: InfeasibleError, simulate: Simulate, budget: Budget
) -> Plan:
    """The plan of a layout that nearly fits, with the first buckets with which it does; it bounds nothing yet.

    Buckets move what is exchanged, and what lies where with it, so that a few bytes more or less are there at once.

    Raises:
        InfeasibleError: the error that there was without buckets.
        OutOfTimeError: there is not enough time.
    """
    limit, streams = request.memory_limit_bytes, request.pins.exchange_streams or 1
    is_near = error.smallest_limit is not None and error.smallest_limit <= (1 + NEARLY) * limit
    is_soon = planning_s(len(priced.graph.ops), solved.config) <= SOON_S
    for size in _sizes(priced)[1] if is_near and is_soon and request.pins.bucket_bytes is None else ():
        config = replace(solved.config, bucket_bytes=size, exchange_streams=streams)
        bucketed = priced.exchanging(size, streams)
        try:
            found = replace(solved, config=config)
            return simulated_plan(request, found, simulate, bound_ns=0, priced=bucketed, budget=budget)
        except InfeasibleError:
            continue
    raise error


def _sizes(priced: Priced) -> tuple[int, list[int]]:
    """Bytes of all gradients, and of buckets to look at; none where there is nothing to put together."""
    nbytes = bucketable_bytes(priced)
    total = sum(nbytes)
    counts = COUNTS if priced.pipeline.overlaps else COUNTS[:1]
    return total, [-(-total // count) for count in counts if count < len(nbytes)]


def _exchanging(request: Request, plan: Plan, config: PlanConfig, simulate: Simulate, budget: Budget) -> Plan:
    """The same layout with another exchange, simulated; it claims the same bound."""
    objective_ns, bound_ns = (round(of * 1e9) for of in (plan.claims.objective_s, plan.claims.lower_bound_s))
    solved = Solved(config, plan.layout, objective_ns, bound_ns, (), plan.priced.times)
    priced = plan.priced.exchanging(config.bucket_bytes, config.exchange_streams)
    found = simulated_plan(request, solved, simulate, priced=priced, budget=budget)
    same = {name: getattr(plan.claims, name) for name in ("status", "objective_s", "lower_bound_s", "gap")}
    return found.claiming(replace(found.claims, **same), plan.certificate)
