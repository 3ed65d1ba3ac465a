"""Best plan: the search and the simulator together, as the one function that programs pass to their graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategy.plan.plan import Plan
    from strategy.space.request import Request


def best_plan(request: Request, *, time_limit_s: float = 50.0) -> Plan:
    """The best plan that is found in a time.

    Raises:
        InfeasibleError: nothing fits the memory limit, or the pins leave nothing.
        OutOfTimeError: the time ran out before there was any plan.
    """
    from experiments.planning.prices import simulated_step
    from strategy.base.budget import Budget
    from strategy.search.search import search

    return search(request, simulate=simulated_step, budget=Budget.of(time_limit_s)).plan
