"""The solver against every choice listed and priced: on random problems, and on layouts of random graphs.

One case in ten is a graph. What a problem is good for is counted by what is really in it, not by what was asked for.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from strategy.base.status import Status
from strategy.ilp.check import check_solution
from strategy.ilp.problem import FORBIDDEN, Problem, evaluate
from strategy.ilp.solve import smallest_limit, solve
from strategy.ilp.solve.conflict import overfull_times
from strategy.ilp.solve.memory_feasibility import find_legal
from tests.campaigns import graph_layouts
from tests.campaigns.outcome import Outcome, survived
from tests.strategy.ilp.problems import random_problem

GRAPHS = 10
"""One case of so many is a graph."""

TIED = 5
"""One problem of so many has next to no different costs."""

QUOTAS = {
    **dict.fromkeys(("forbidden pairs", "parallel edges", "empty lifetimes", "tight limit", "ties", "infeasible"), 0.1),
    "two axes": 0.02,
    "two stages": 0.01,
    "binding limit": 0.02,
    "impossible limit": 0.01,
    "uneven": 0.02,
}


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` problems; of the graphs, one in fifty has some thousand layouts, the others some hundred."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        if number % GRAPHS == 0:
            nth = number // GRAPHS
            case = graph_layouts.nth_case(nth, most=4000 if nth % 50 == 0 else 250)
            outcome.add(f"graph {nth}", survived(graph_layouts.check(case, nth, exercised)), exercised)
        else:
            problem = random_problem(random.Random(number))
            if number % TIED == 1:
                problem = coarse(problem)
            outcome.add(f"problem {number}", survived(check(problem, exercised)), exercised)
    return outcome


def check(problem: Problem, exercised: list[str]) -> Iterator[str]:
    """Everything that the solver says wrongly of a problem."""
    choices = itertools.product(*(range(len(node.costs)) for node in problem.nodes))
    legal = [value for value in (evaluate(problem, choice) for choice in choices) if value.cost < FORBIDDEN]
    fitting = [value.cost for value in legal if problem.limit is None or value.peak <= problem.limit]
    exercised += _kinds(problem)
    answer = solve(problem)
    if not fitting:
        exercised.append("infeasible")
        yield from _check_infeasible(problem, answer.status, min((value.peak for value in legal), default=None))
        return
    least = min(fitting)
    exercised += ["ties"] * (fitting.count(least) > 1)
    exercised += ["tight limit"] * (least > min(value.cost for value in legal))
    if (answer.status, answer.cost, answer.lower_bound) != (Status.OPTIMAL, least, least):
        yield f"{answer.status} {answer.cost} >= {answer.lower_bound}, but {least} is the least"
    if answer.choice is None:
        return
    value = evaluate(problem, answer.choice)
    if value.cost != answer.cost or (problem.limit is not None and not value.peak == answer.peak <= problem.limit):
        yield f"cost and peak are {(answer.cost, answer.peak)} to the solver, and {value} by its choice"
    yield from check_solution(problem, answer.choice, value.cost)


def coarse(problem: Problem) -> Problem:
    """The same problem with costs of 0, 1 and 2."""

    def few(costs: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(cost if cost >= FORBIDDEN else cost % 3 for cost in costs)

    nodes = tuple(replace(node, costs=few(node.costs)) for node in problem.nodes)
    return replace(problem, nodes=nodes, edges=tuple(replace(edge, costs=few(edge.costs)) for edge in problem.edges))


def _check_infeasible(problem: Problem, status: Status, least_peak: int | None) -> Iterator[str]:
    """The solver, and the second one that it asks, say so; the times named are overfull whatever is chosen."""
    if status is not Status.INFEASIBLE:
        yield f"{status}, but nothing is legal"
    if not find_legal(problem).infeasible:
        yield "the second solver finds something legal"
    if problem.limit is None:
        return
    found = smallest_limit(problem)
    if found != least_peak:
        yield f"smallest limit {found}, but {least_peak} is the smallest peak"
    if least_peak is not None:
        times = overfull_times(problem)
        if not times:
            yield "no time is named"
        if max((one.least for one in times), default=0) > least_peak:
            yield f"{times} hold more than the smallest peak {least_peak}"


def _kinds(problem: Problem) -> Iterator[str]:
    """What is awkward about a problem."""
    if any(cost >= FORBIDDEN for edge in problem.edges for cost in edge.costs):
        yield "forbidden pairs"
    pairs = Counter(frozenset((edge.tail, edge.head)) for edge in problem.edges if edge.tail != edge.head)
    if any(count > 1 for count in pairs.values()):
        yield "parallel edges"
    if any(usage.begin == usage.end and any(usage.amounts) for node in problem.nodes for usage in node.usages):
        yield "empty lifetimes"
