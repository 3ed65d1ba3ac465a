"""Fitted plan: a solved candidate as a plan whose memory, as it is laid out, fits the limit.

The search counts memory by lifetimes. Where gaps between blocks make a layout exceed the limit, the candidate is solved
again for a limit that is lower by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import Solved, solve_candidate
from strategy.search.candidate.simulated_plan import Simulate, simulated_plan
from strategy.space.candidate_space import free_rules
from strategy.space.request import Request

ROUNDS = 4
"""How often a candidate is solved again before it is refused."""


def fitted_plan(
    request: Request,
    solved: Solved,
    simulate: Simulate,
    *,
    rules: Sequence[str] = (),
    bound_ns: int | None = None,
    budget: Budget = UNLIMITED,
    needed: bool = True,
) -> Plan:
    """The plan of a candidate, simulated; its bound stays that of the first solution.

    Without `rules` it is solved again as freely as in a search. What is `needed` is simulated however long it takes.

    Raises:
        InfeasibleError: no layout was found, within the budget and in a few rounds, whose memory fits.
        OutOfTimeError: it is not needed, and there is not enough time for it.
    """
    simulating = UNLIMITED if needed else budget
    bound_ns = solved.bound_ns if bound_ns is None else bound_ns
    for _ in range(ROUNDS):
        try:
            return simulated_plan(request, solved, simulate, bound_ns=bound_ns, budget=simulating)
        except InfeasibleError as error:
            found = _solved_tighter(request, solved, rules or free_rules(solved.config), error, budget)
            if found is None:
                raise
            solved = found
    return simulated_plan(request, solved, simulate, bound_ns=bound_ns, budget=simulating)


def _solved_tighter(
    request: Request, solved: Solved, rules: Sequence[str], error: InfeasibleError, budget: Budget
) -> Solved | None:
    """Another layout, of lifetimes that hold less by what the last one exceeded the limit by."""
    if error.smallest_limit is None:  # it is the host's memory that is short
        return None
    overshoot = error.smallest_limit - request.memory_limit_bytes
    limit = min(request.memory_limit_bytes, max(solved.peaks)) - overshoot
    if limit <= 0 or request.deduction is not None or budget.is_over():
        return None
    try:
        return solve_candidate(replace(request, memory_limit_bytes=limit), solved.config, rules=rules, budget=budget)
    except OutOfTimeError:
        return None
