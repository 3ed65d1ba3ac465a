"""The layout problem, solved, against every layout listed and priced: on random graphs, with and without a limit."""

from __future__ import annotations

import random
from collections.abc import Iterator

from strategy.base.status import Status
from strategy.ilp.problem import evaluate
from strategy.ilp.solve import smallest_limit, solve
from strategy.layout.convert import lay_out
from strategy.space.layout_problem import layout_problem
from strategy.space.restriction import complete
from tests.support.random_graphs import GraphCase, Priced, every_layout, price, random_case


def nth_case(number: int, *, most: int) -> GraphCase:
    """Of ten cases five have one axis, three have two, and two have two stages."""
    kind = number % 10
    return random_case(number, axes=2 if kind in (5, 6, 7, 9) else 1, stages=2 if kind > 7 else 1, most=most)


def check(case: GraphCase, seed: int, exercised: list[str]) -> Iterator[str]:
    """Everything that solver and list disagree on; says in `exercised` what the case was good for."""
    layouts = list(every_layout(case))
    exercised += ["two axes"] * (len(case.mesh) > 1)
    exercised += ["two stages"] * (len(case.stages.placements) > 1)
    exercised += ["uneven"] * case.uneven
    yield from _compare(case, layouts, None)
    if not layouts:
        exercised.append("no layout")
        return
    for layout in layouts:
        if layout.cost_ns > case.paths.number * layout.objective_ns:
            yield f"{case.paths.number} paths are {layout.cost_ns} long, the objective is {layout.objective_ns}"
    best = min(layout.cost_ns for layout in layouts)
    roomy = min(layout.peak for layout in layouts if layout.cost_ns == best)
    least = min(layout.peak for layout in layouts)
    if least < roomy:
        exercised.append("binding limit")
        yield from _compare(case, layouts, random.Random(seed).randrange(least, roomy))
    if least:
        exercised.append("impossible limit")
        yield from _compare(case, layouts, least)
        yield from _compare(case, layouts, least * 99 // 100)
        found = smallest_limit(layout_problem(case.space, limit=0).problem)
        if found != least:
            yield f"smallest limit {found}, but {least} is the smallest peak"


def _compare(case: GraphCase, layouts: list[Priced], limit: int | None) -> Iterator[str]:
    """The solver's answer under a limit, against the cheapest layout that fits."""
    problem = layout_problem(case.space, limit=limit)
    solution = solve(problem.problem)
    fitting = [layout.cost_ns for layout in layouts if limit is None or layout.peak <= limit]
    if not fitting:
        if solution.status is not Status.INFEASIBLE or solution.choice is not None:
            yield f"limit {limit}: {solution.status}, but no layout fits"
        return
    if (solution.status, solution.cost, solution.lower_bound) != (Status.OPTIMAL, min(fitting), min(fitting)):
        yield f"limit {limit}: {solution.status} {solution.cost} >= {solution.lower_bound}, least is {min(fitting)}"
    if solution.choice is None:
        return
    signatures = problem.signatures(solution.choice)
    made = price(case, lay_out(case.graph, case.stages, signatures, case.space.converter))
    needed = evaluate(problem.problem, complete(problem.problem, solution.choice[: len(problem.classes)]))
    # A copy that costs nothing may be held for nobody: the solver says no less than what is needed.
    if made.cost_ns != solution.cost or (limit is not None and not made.peak == needed.peak <= (solution.peak or 0)):
        said, found = (solution.cost, solution.peak), (made.cost_ns, made.peak)
        yield f"limit {limit}: cost and peak are {said} to the solver, and {found} by its layout"
