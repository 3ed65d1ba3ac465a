"""Fitted plan: a solved candidate as a plan whose memory, as it is laid out, fits the limit.

The search counts memory by lifetimes. Where gaps between blocks make a layout exceed the limit, the candidate is solved
again for a limit that is lower by as much.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from strategy.base.errors import InfeasibleError
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import Solved, solve_candidate
from strategy.search.candidate.candidates import Request, free_rules
from strategy.search.candidate.simulated_plan import Simulate, simulated_plan
from strategy.search.candidate.weighted_problem import OutOfTimeError

ROUNDS = 4
"""How often a candidate is solved again before it is refused."""


def fitted_plan(
    request: Request,
    solved: Solved,
    simulate: Simulate,
    *,
    rules: Sequence[str] = (),
    bound_ns: int | None = None,
    deadline: float = math.inf,
) -> Plan:
    """The plan of a candidate, simulated; its bound stays that of the first solution.

    Without `rules` it is solved again as freely as in a search.

    Raises:
        InfeasibleError: no layout was found, by `deadline` (time.monotonic) and in a few rounds, whose memory fits.
    """
    bound_ns = solved.bound_ns if bound_ns is None else bound_ns
    for _ in range(ROUNDS):
        try:
            return simulated_plan(request, solved, simulate, bound_ns=bound_ns)
        except InfeasibleError as error:
            found = _solved_tighter(request, solved, rules or free_rules(solved.config), error, deadline)
            if found is None:
                raise
            solved = found
    return simulated_plan(request, solved, simulate, bound_ns=bound_ns)


def _solved_tighter(
    request: Request, solved: Solved, rules: Sequence[str], error: InfeasibleError, deadline: float
) -> Solved | None:
    """Another layout, of lifetimes that hold less by what the last one exceeded the limit by."""
    if error.smallest_limit is None:  # it is the host's memory that is short
        return None
    overshoot = error.smallest_limit - request.memory_limit_bytes
    limit = min(request.memory_limit_bytes, max(solved.peaks)) - overshoot
    left_s = None if deadline == math.inf else deadline - time.monotonic()
    if limit <= 0 or request.deduction is not None or (left_s is not None and left_s <= 0):
        return None
    try:
        return solve_candidate(
            replace(request, memory_limit_bytes=limit), solved.config, rules=rules, time_limit_s=left_s
        )
    except OutOfTimeError:
        return None
