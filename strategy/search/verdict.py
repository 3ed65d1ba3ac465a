"""Verdict: what solving one candidate exactly says: its best layout, and a bound on all of them.

Bounds are statements about the objective, for a candidate's layouts x:

    a candidate's objective   max over stages of stage_ns(x)
    its bound                 max over weights w >= 0 of  min over x of sum_s w_s stage_ns(x) / sum_s w_s

with w all ones, and w the slowest stage alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strategy.config import PlanConfig
from strategy.convert import lay_out
from strategy.errors import InfeasibleError, SbplanError
from strategy.layout import Layout
from strategy.lowering.arrangement import arrange
from strategy.lowering.lifetime_peak import lifetime_peaks
from strategy.objective import stage_times_ns
from strategy.search.candidates import Request, space_of
from strategy.search.deduce import Deduction, deduce
from strategy.search.layout_problem import SearchSpace, layout_problem
from strategy.search.quick_bound import quick_bound_ns
from strategy.signature import Signature
from strategy.solve import SolveStatus, solve

NEGLIGIBLE = 1e-3
"""A part of the objective that it is not worth looking at a second layout for."""


class OutOfTimeError(SbplanError):
    """The time limit was reached before there was any plan."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Solved:
    """A candidate with a layout: its objective and a proved bound on every layout's, in nanoseconds.

    `peaks` are bytes on the rank of each stage that holds most, as the search counts them (`lifetime_peak`); `slowest`
    is the stage whose time the objective is.
    """

    config: PlanConfig
    layout: Layout
    objective_ns: int
    bound_ns: int
    peaks: tuple[int, ...]
    slowest: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a candidate: bounds without and with the memory limit, and its best layout, if one is known.

    `bound_ns` is None where no layout fits. Bounds end at the cutoff.
    """

    free_bound_ns: int
    bound_ns: int | None
    solved: Solved | None


def solve_candidate(
    request: Request,
    config: PlanConfig,
    *,
    rules: Sequence[str],
    time_limit_s: float | None = None,
    cutoff_ns: int | None = None,
) -> Solved | None:
    """The best layout of one candidate under one rule per axis; None if none fits the memory limit.

    With a cutoff, layouts that are no better are of no interest: None, or one of them, if none is better.

    Raises:
        InfeasibleError: the pins leave some op without signature.
        OutOfTimeError: the time ran out before there was any layout.
    """
    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    return examine(request, config, rules, deadline, cutoff_ns).solved


def examine(
    request: Request, config: PlanConfig, rules: Sequence[str], deadline: float, cutoff_ns: int | None
) -> Verdict:
    """Solve without the memory limit; with it if that does not fit; then see what the slowest stage alone says.

    Raises:
        InfeasibleError: the pins leave some op without signature.
        OutOfTimeError: `deadline` (time.monotonic) passed before there was any layout.
    """
    space = space_of(request, config, rules)
    if request.deduction is not None:
        quick_ns = quick_bound_ns(request, config)
        deduced = _deduced(config, space, request.deduction, request.memory_limit_bytes, quick_ns)
        return Verdict(quick_ns, deduced.bound_ns, deduced)

    def solved_under(limit: int | None) -> tuple[int, dict[str, Signature] | None]:
        return _solve_weighted(space, limit=limit, deadline=deadline, cutoff_ns=cutoff_ns)

    free_bound, signatures = solved_under(None)
    found = None if signatures is None else _evaluate(config, space, signatures, free_bound)
    beaten = cutoff_ns is not None and free_bound >= cutoff_ns
    fits = found is not None and max(found.peaks) <= request.memory_limit_bytes
    bound: int | None = free_bound
    if not fits and beaten:
        found = None
    elif not fits:
        bound, signatures = solved_under(request.memory_limit_bytes)
        bound = max(bound, free_bound)
        if signatures is None:
            proved_worse = cutoff_ns is not None and bound >= cutoff_ns
            return Verdict(free_bound, bound if proved_worse else None, None)
        found = _evaluate(config, space, signatures, bound)
        if max(found.peaks) > request.memory_limit_bytes:
            return Verdict(free_bound, None, None)
    if found is not None and config.pp > 1 and (cutoff_ns is None or found.bound_ns < cutoff_ns):
        found = _focus_on_slowest(request.memory_limit_bytes, space, found, deadline, cutoff_ns, fits=fits)
        found = _no_worse_than_deduced(request.memory_limit_bytes, space, found)
        free_bound = found.bound_ns if fits else free_bound  # what fits was looked at without the limit
    return Verdict(free_bound, bound if found is None else found.bound_ns, found)


def _deduced(config: PlanConfig, space: SearchSpace, rule: Deduction, memory_limit_bytes: int, bound_ns: int) -> Solved:
    """The layout that a rule deduces.

    Raises:
        InfeasibleError: the pins leave an op without signature, or the layout needs more memory than there is.
    """
    signatures = deduce(space.graph, space.stages, space.converter, space.keep, rule=rule, owned=space.owned)
    found = _evaluate(config, space, signatures, bound_ns)
    if max(found.peaks) > memory_limit_bytes:
        needed = f"{max(found.peaks)} bytes per device needed, {memory_limit_bytes} are there"
        raise InfeasibleError(f"the deduced layout does not fit: {needed}", hint="pin splits, or search")
    return found


def _no_worse_than_deduced(memory_limit_bytes: int, space: SearchSpace, found: Solved) -> Solved:
    """Several stages are weighed against one another, which is no proof; so look at what no search would give.

    Not where it could gain next to nothing.
    """
    if found.objective_ns - found.bound_ns <= NEGLIGIBLE * found.objective_ns:
        return found
    try:
        deduced = _deduced(found.config, space, Deduction.MATCH_ALL, memory_limit_bytes, found.bound_ns)
    except InfeasibleError:
        return found
    return deduced if deduced.objective_ns < found.objective_ns else found


def _focus_on_slowest(
    memory_limit_bytes: int, space: SearchSpace, found: Solved, deadline: float, cutoff_ns: int | None, *, fits: bool
) -> Solved:
    """Weigh the slowest stage alone: a second bound, and perhaps a better layout."""
    alone = replace(space, weights=tuple(int(stage == found.slowest) for stage in range(found.config.pp)))
    limit = None if fits else memory_limit_bytes
    try:
        bound, signatures = _solve_weighted(alone, limit=limit, deadline=deadline, cutoff_ns=cutoff_ns)
    except OutOfTimeError:
        return found
    bound = max(bound, found.bound_ns)
    if signatures is not None:
        other = _evaluate(found.config, space, signatures, bound)
        if other.objective_ns < found.objective_ns and max(other.peaks) <= memory_limit_bytes:
            return other
    return replace(found, bound_ns=min(bound, found.objective_ns))


def _solve_weighted(
    space: SearchSpace, *, limit: int | None, deadline: float, cutoff_ns: int | None
) -> tuple[int, dict[str, Signature] | None]:
    """(bound on the objective in ns, signatures) of one weighted problem.

    No signatures if it is infeasible, or if nothing beats the cutoff; then the bound is at least that.

    Raises:
        OutOfTimeError: neither a choice nor the proof that there is none was found in time.
    """
    try:
        problem = layout_problem(space, limit=limit, deadline=deadline)
    except TimeoutError as error:
        raise OutOfTimeError(f"{error}; raise the time limit") from error
    left_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
    weight = sum(space.weights)
    cutoff = None if cutoff_ns is None else (cutoff_ns - 1) * weight + 1
    solution = solve(problem.problem, time_limit_s=left_s, cutoff=cutoff)
    bound = -(-solution.lower_bound // weight)
    if solution.choice is not None:
        return bound, problem.signatures(solution.choice)
    if solution.status in (SolveStatus.INFEASIBLE, SolveStatus.CUTOFF):
        return bound, None
    raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")


def _evaluate(config: PlanConfig, space: SearchSpace, signatures: Mapping[str, Signature], bound_ns: int) -> Solved:
    layout = lay_out(space.graph, space.stages, signatures, space.converter)
    arrangement = arrange(space.graph, layout, space.pipeline)
    times = stage_times_ns(space.graph, layout, arrangement, space.cost, space.pipeline)
    objective = max(times)
    peaks = lifetime_peaks(space.graph, space.stages, arrangement)
    return Solved(config, layout, objective, min(bound_ns, objective), peaks, times.index(objective))
