"""Memory feasibility: is any choice legal, and what is the smallest limit under which one is?

The CP-SAT model here is built from the problem as it was given, without reductions and without costs: it is the
second opinion before `infeasible` is said. Forbidden pairs are clauses: rows of a table with the same legal
columns are one class, and a class implies one of its columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.base.interruption import put_off
from strategy.ilp.problem import FORBIDDEN, Problem, evaluate

# CP-SAT is given this long at least.
LEAST_TIME_S = 0.01
ASK_AGAIN_S = 0.05
"""Between two requests to stop."""


class PeakLimitError(OutOfTimeError):
    """The time ran out before the smallest memory limit was proved: what was, in bytes."""

    def __init__(self, lower: int, upper: int | None) -> None:
        self.lower, self.upper = lower, upper
        found = f"between {lower} and {upper}" if upper is not None else f"at least {lower}"
        super().__init__(f"the smallest memory limit is {found}: the time limit was reached before more was proved")


@dataclass(frozen=True, slots=True)
class Feasibility:
    """What CP-SAT says: `infeasible` is a proof; with neither it nor `choice` the time ran out.

    No choice has a peak below `peak_bound`.
    """

    infeasible: bool
    choice: tuple[int, ...] | None
    peak_bound: int


def find_legal(problem: Problem, *, budget: Budget = UNLIMITED) -> Feasibility:
    """Some legal choice within the limit, or the proof that none exists."""
    return _ask(problem, problem.limit, minimise=False, budget=budget)


def least_peak(problem: Problem, *, budget: Budget = UNLIMITED) -> Feasibility:
    """The choice of the smallest peak that was found, and a bound on all peaks; `problem.limit` plays no part."""
    return _ask(problem, None, minimise=True, budget=budget)


def smallest_limit(problem: Problem, *, budget: Budget = UNLIMITED) -> int | None:
    """The smallest memory limit under which some choice is legal, exactly; `problem.limit` plays no part.

    Args:
        problem: what to ask about.
        budget: the time to spend.

    Returns:
        The limit in bytes, or None where forbidden pairs and costs exclude every choice whatever the memory.

    Raises:
        PeakLimitError: the time ran out; it carries what was proved.
    """
    answer = least_peak(problem, budget=budget)
    if answer.infeasible:
        return None
    peak = None if answer.choice is None else evaluate(problem, answer.choice).peak
    if peak is None or peak > answer.peak_bound:
        raise PeakLimitError(answer.peak_bound, peak)
    return peak


def _ask(problem: Problem, limit: int | None, *, minimise: bool, budget: Budget) -> Feasibility:
    """The feasibility model, with the peak under `limit`, or minimised."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    picks = [[model.new_bool_var("") for _ in node.costs] for node in problem.nodes]
    for row, node in zip(picks, problem.nodes, strict=True):
        model.add_exactly_one(row)
        for pick, cost in zip(row, node.costs, strict=True):
            if cost >= FORBIDDEN:
                model.add(pick == 0)
    for edge in problem.edges:
        _forbid_pairs(model, picks[edge.tail], picks[edge.head], edge.costs)
    most = sum(max(usage.amounts) for node in problem.nodes for usage in node.usages)
    peak = model.new_int_var(0, most if limit is None else min(limit, most), "peak")
    for load in _loads(problem, picks):
        model.add(load <= peak)
    if minimise:
        model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 2
    solver.parameters.max_time_in_seconds = max(budget.left_s(), LEAST_TIME_S)
    status = _interruptible(solver, model)
    choice = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        choice = tuple(next(c for c, pick in enumerate(row) if solver.boolean_value(pick)) for row in picks)
    bound = solver.response_proto.inner_objective_lower_bound if minimise else 0
    return Feasibility(infeasible=status == cp_model.INFEASIBLE, choice=choice, peak_bound=max(int(bound), 0))


def _interruptible(solver: Any, model: Any) -> Any:
    """The status of a solve that Ctrl-C ends.

    CP-SAT's own handler would swallow the signal, and leave none behind: the next one would kill the process.
    """
    solver.parameters.catch_sigint_signal = False
    jobs = []
    with ThreadPoolExecutor(1) as pool:
        try:
            with put_off():  # until there is something to stop
                jobs.append(pool.submit(solver.solve, model))
            return jobs[0].result()
        except BaseException:
            while not all(job.done() for job in jobs):  # asked before CP-SAT has begun, it goes on all the same
                solver.stop_search()
                wait(jobs, timeout=ASK_AGAIN_S)
            raise


def _forbid_pairs(model: Any, tail: Sequence[Any], head: Sequence[Any], costs: tuple[int, ...]) -> None:
    """Clauses for one edge: a pick of a row class implies one of the class's legal columns."""
    width = len(head)
    classes: dict[tuple[bool, ...], list[Any]] = {}
    for row, pick in enumerate(tail):
        legal = tuple(cost < FORBIDDEN for cost in costs[row * width : (row + 1) * width])
        classes.setdefault(legal, []).append(pick)
    for legal, members in classes.items():
        if not all(legal):
            partners = [pick for pick, allowed in zip(head, legal, strict=True) if allowed]
            for member in members:
                model.add_bool_or([member.negated(), *partners])


def _loads(problem: Problem, picks: Sequence[Sequence[Any]]) -> list[Any]:
    """The memory held at each instant that could be the peak: after a beginning, just before an end."""
    from ortools.sat.python import cp_model

    spans = [
        (usage, row)
        for row, node in zip(picks, problem.nodes, strict=True)
        for usage in node.usages
        if usage.begin < usage.end
    ]
    begins, ends = {usage.begin for usage, _ in spans}, {usage.end for usage, _ in spans}
    times = sorted(begins | ends)
    loads = []
    for instant, after in itertools.pairwise(times):
        if instant in begins and after in ends:
            live = [(usage, row) for usage, row in spans if usage.begin <= instant < usage.end]
            variables = [pick for _, row in live for pick in row]
            amounts = [amount for usage, _ in live for amount in usage.amounts]
            loads.append(cp_model.LinearExpr.weighted_sum(variables, amounts))
    return loads
