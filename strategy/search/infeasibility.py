"""Infeasibility: where no plan fits the memory limit, the smallest limit that would do, and what fills it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from strategy.config import PlanConfig
from strategy.convert import lay_out
from strategy.errors import InfeasibleError
from strategy.lowering.arrangement import arrange
from strategy.lowering.memory import memory_peak, peak_memory_bytes
from strategy.search.candidates import Request, free_rules, space_of
from strategy.search.layout_problem import layout_problem
from strategy.solve import PeakLimitError, smallest_limit
from strategy.solve.peak import find_legal

EXPLANATION_S = 5.0
"""Seconds to spend on saying what fills the memory."""


def nothing_fits(request: Request, candidates: Sequence[PlanConfig], deadline: float = math.inf) -> InfeasibleError:
    """Proved: no layout of any candidate fits. Names the smallest limit that would do, and its biggest item.

    Args:
        request: what was searched for.
        candidates: all that do not fit.
        deadline: when to stop, by time.monotonic; every candidate that is begun has a second at least.
    """
    smallest: tuple[int, PlanConfig] | None = None
    complete = True
    for config in candidates:
        left_s = None if deadline == math.inf else max(1.0, deadline - time.monotonic())
        limited = layout_problem(space_of(request, config, free_rules(config)), limit=request.memory_limit_bytes)
        try:
            found = smallest_limit(limited.problem, time_limit_s=left_s)
        except PeakLimitError as error:
            complete = False
            found = error.upper
        if found is not None and (smallest is None or found < smallest[0]):
            smallest = found, config
        if time.monotonic() >= deadline:
            complete = False
            break
    problem_text = f"no plan fits {request.memory_limit_bytes} bytes per device"
    if smallest is None:
        return InfeasibleError(problem_text, hint="the time ran out before a limit that works was found")
    limit, config = smallest
    word = "the smallest limit that works is" if complete else "a limit that works (the time ran out) is"
    hint = f"{word} {limit} bytes, with {_biggest_item(request, config, limit)}"
    return InfeasibleError(problem_text, smallest_limit=limit, hint=hint)


def _biggest_item(request: Request, config: PlanConfig, limit: int) -> str:
    """What fills the memory of a candidate that just fits into `limit`."""
    degrees = (
        f"dp {config.dp}, cp {config.cp}, tp {config.tp}, pp {config.pp}, micro-batches: {config.num_micro_batches}"
    )
    space = space_of(request, config, free_rules(config))
    limited = layout_problem(space, limit=limit)
    legal = find_legal(limited.problem, time_limit_s=EXPLANATION_S)
    if legal.choice is None:
        return degrees
    layout = lay_out(space.graph, space.stages, limited.signatures(legal.choice), space.converter)
    arrangement = arrange(space.graph, layout, space.pipeline)
    peaks = peak_memory_bytes(space.graph, space.stages, arrangement)
    rank = peaks.index(max(peaks))
    name, nbytes = memory_peak(space.graph, space.stages, arrangement, rank).tensors[0]
    return f"{degrees}; the biggest item is then {name} with {nbytes} bytes"
