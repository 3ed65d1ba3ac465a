"""Exchange choice: how large the buckets are in which a plan exchanges its gradients, and over how many streams.

Signatures are chosen with every exchange priced by itself. Then the plan is simulated with a few sizes of buckets, and
the fastest that fits is kept; of equally fast ones that with the smallest buckets and the fewest streams.

Where collectives run beside computation a bucket should be large enough for its latency not to matter and small enough
to go off while the backward pass still runs; where they do not, one bucket takes the least latency.
"""

from __future__ import annotations

from collections.abc import Iterator
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

MIB = 1 << 20
SIZES = (1 * MIB, 4 * MIB, 25 * MIB, 128 * MIB)
"""Of buckets that leave room for overlap; PyTorch's default is 25 MiB, Horovod's 128."""
STREAMS = (1, 2)


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
    for config in _exchanges(request, plan):
        if budget.is_over():
            break
        try:
            found = _exchanging(request, plan, config, simulate, budget)
        except (InfeasibleError, OutOfTimeError):
            continue
        if found.claims.step_time_s < best.claims.step_time_s:
            best = found
    return best


def _exchanges(request: Request, plan: Plan) -> Iterator[PlanConfig]:
    """The configurations to look at, smallest buckets first; none where there is nothing to put together."""
    pins, config = request.pins, plan.config
    nbytes = bucketable_bytes(plan.priced)
    if len(nbytes) < 2:
        return
    total = sum(nbytes)
    sizes = [size for size in SIZES if size < total] if plan.pipeline.overlaps else []
    streams = STREAMS if plan.pipeline.overlaps else STREAMS[:1]
    for size in (*sizes, total):
        for count in streams if pins.exchange_streams is None else (pins.exchange_streams,):
            if count == 1 or size < total:
                yield replace(config, bucket_bytes=size, exchange_streams=count)


def _exchanging(request: Request, plan: Plan, config: PlanConfig, simulate: Simulate, budget: Budget) -> Plan:
    """The same layout with another exchange, simulated; it claims the same bound."""
    objective_ns, bound_ns = (round(of * 1e9) for of in (plan.claims.objective_s, plan.claims.lower_bound_s))
    solved = Solved(config, plan.layout, objective_ns, bound_ns, (), plan.priced.times)
    priced = Priced(plan.graph, plan.layout, request.pipeline_of(config), request.cost)
    found = simulated_plan(request, solved, simulate, priced=priced, budget=budget)
    same = {name: getattr(plan.claims, name) for name in ("status", "objective_s", "lower_bound_s", "gap")}
    return replace(found, claims=replace(found.claims, **same), certificate=plan.certificate)
