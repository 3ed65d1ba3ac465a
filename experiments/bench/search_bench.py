"""Our solver against the methods of others, on the same problems in the same process, each with the same time limit.

Every answer is checked by `strategy.ilp.check`, which knows none of the methods. A gap is the distance of a cost to the
best lower bound that our solver proves, as a share of the cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

from experiments.bench.search_problems import SearchProblem
from strategy.base.budget import Budget
from strategy.base.errors import InternalError
from strategy.ilp.baselines import BASELINES, Baseline
from strategy.ilp.check import check_solution
from strategy.ilp.problem import Problem, evaluate
from strategy.ilp.solve import solve

OURS = "ours"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """One method on one problem; `time_s` is wall time, of `process_s` of this process's own."""

    cost: int | None
    gap: float | None
    time_s: float
    process_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All methods on one problem; ours is the first."""

    name: str
    nodes: int
    edges: int
    cells: int
    build_s: float
    lower_bound: int
    results: Mapping[str, Result]

    @property
    def worse_than(self) -> tuple[str, ...]:
        """The methods that found something cheaper than ours."""
        costs = {name: result.cost for name, result in self.results.items()}
        ours = costs.pop(OURS)
        return tuple(name for name, cost in costs.items() if cost is not None and (ours is None or cost < ours))

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return asdict(self) | {"worse_than": list(self.worse_than)}


def compare(entry: SearchProblem, time_limit_s: float, baselines: Mapping[str, Baseline] = BASELINES) -> Comparison:
    """Build a problem and solve it by every method."""
    start = time.perf_counter()
    problem = entry.build()
    build_s = time.perf_counter() - start
    solution, elapsed_s, process_s = _timed(lambda: solve(problem, budget=Budget.of(time_limit_s)))
    bound = solution.lower_bound

    def result(choice: tuple[int, ...] | None, times: tuple[float, float], note: str) -> Result:
        cost = _checked_cost(problem, choice)
        return Result(cost, None if cost is None else (cost - bound) / max(cost, 1), *times, note)

    results = {OURS: result(solution.choice, (elapsed_s, process_s), str(solution.status))}
    for name, method in baselines.items():
        found, elapsed_s, process_s = _timed(partial(method, problem, Budget.of(time_limit_s)))
        results[name] = result(found.choice, (elapsed_s, process_s), found.note)
    cells = sum(len(edge.costs) for edge in problem.edges)
    return Comparison(entry.name, len(problem.nodes), len(problem.edges), cells, build_s, bound, results)


def _timed(job: Callable[[], T]) -> tuple[T, float, float]:
    wall_s, process_s = time.perf_counter(), time.process_time()
    answer = job()
    return answer, time.perf_counter() - wall_s, time.process_time() - process_s


def _checked_cost(problem: Problem, choice: tuple[int, ...] | None) -> int | None:
    """The exact cost of a choice.

    Raises:
        InternalError: the choice is illegal.
    """
    if choice is None:
        return None
    cost = evaluate(problem, choice).cost
    faults = check_solution(problem, choice, cost)
    if faults:
        raise InternalError(f"an illegal choice: {faults[0]}")
    return cost


def table(comparisons: Iterable[Comparison]) -> str:
    """Cost, gap and time of every method, a line per problem and method; `*` is the least cost."""
    lines = [f"{'problem':<34}{'method':<20}{'cost':>18}{'gap':>10}{'time':>9}"]
    for one in comparisons:
        least = min((r.cost for r in one.results.values() if r.cost is not None), default=None)
        for name, result in one.results.items():
            cost = "none" if result.cost is None else f"{result.cost}{'*' if result.cost == least else ' '}"
            gap = "" if result.gap is None else f"{result.gap:.3%}"
            label = one.name if name == OURS else ""
            lines.append(f"{label:<34}{name:<20}{cost:>18}{gap:>10}{result.time_s:>7.2f} s  {result.note}".rstrip())
    return "\n".join(lines)
