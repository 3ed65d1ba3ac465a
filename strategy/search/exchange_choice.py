"""Exchange choice: how large the buckets are in which a plan exchanges its gradients, and over how many streams.

Signatures are chosen with every exchange priced by itself. Then the plan is simulated with a few sizes of buckets, and
the fastest that fits is kept; of equally fast ones that with the largest buckets and the fewest streams.

Where collectives run beside computation a bucket should be large enough for its latency not to matter and small enough
to go off while the backward pass still runs; where they do not, one bucket takes the least latency.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.layout.config import PlanConfig
from strategy.layout.objective import Priced
from strategy.lowering.exchange_buckets import bucketable_bytes
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import Solved
from strategy.search.candidate.simulated_plan import Simulate, simulated_plan
from strategy.space.request import Request

COUNTS = (1, 2, 4, 8, 16, 32)
"""Into so many buckets of equal size all gradients would fit; one where exchanges do not run beside computation."""
STREAMS = 2
"""Tried with the best size; two collectives at a time share one link, and hide each other's latency."""


def with_exchange(request: Request, plan: Plan, simulate: Simulate, budget: Budget) -> Plan:
    """The plan with the exchange of gradients that is simulated to take least, as far as the pins leave it open.

    What does not fit the memory, or is not simulated in time, is left out.

    Raises:
        InfeasibleError: buckets are pinned that do not fit the memory.
    """
    pins, best = request.pins, plan
    if pins.bucket_bytes is not None:
        pinned = replace(plan.config, bucket_bytes=pins.bucket_bytes, exchange_streams=pins.exchange_streams or 1)
        return _exchanging(request, plan, pinned, simulate, UNLIMITED) if pins.bucket_bytes else plan
    total, sizes = _sizes(plan)
    streams = pins.exchange_streams or 1
    for size in sizes:
        best = _faster(
            request, best, replace(plan.config, bucket_bytes=size, exchange_streams=streams), simulate, budget
        )
    if pins.exchange_streams is None and 0 < best.config.bucket_bytes < total and plan.pipeline.overlaps:
        best = _faster(request, best, replace(best.config, exchange_streams=STREAMS), simulate, budget)
    return best


def _sizes(plan: Plan) -> tuple[int, list[int]]:
    """Bytes of all gradients, and of buckets to look at; none where there is nothing to put together."""
    nbytes = bucketable_bytes(plan.priced)
    total = sum(nbytes)
    counts = COUNTS if plan.pipeline.overlaps else COUNTS[:1]
    return total, [-(-total // count) for count in counts if count < len(nbytes)]


def _faster(request: Request, plan: Plan, config: PlanConfig, simulate: Simulate, budget: Budget) -> Plan:
    """The plan, or the same layout with another exchange where that fits, is simulated in time and takes less."""
    if budget.is_over():
        return plan
    try:
        found = _exchanging(request, plan, config, simulate, budget)
    except (InfeasibleError, OutOfTimeError):
        return plan
    return found if found.claims.step_time_s < plan.claims.step_time_s else plan


def _exchanging(request: Request, plan: Plan, config: PlanConfig, simulate: Simulate, budget: Budget) -> Plan:
    """The same layout with another exchange, simulated; it claims the same bound."""
    objective_ns, bound_ns = (round(of * 1e9) for of in (plan.claims.objective_s, plan.claims.lower_bound_s))
    solved = Solved(config, plan.layout, objective_ns, bound_ns, (), plan.priced.times)
    priced = Priced(plan.graph, plan.layout, request.pipeline_of(config), request.cost)
    found = simulated_plan(request, solved, simulate, priced=priced, budget=budget)
    same = {name: getattr(plan.claims, name) for name in ("status", "objective_s", "lower_bound_s", "gap")}
    return replace(found, claims=replace(found.claims, **same), certificate=plan.certificate)
