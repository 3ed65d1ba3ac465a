"""Template solve: what the layouts of a template cost at least under weights, with its proof, and what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.base.status import Status
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import TIMES, FloatArray
from strategy.bounds.template_cut import TemplateCut, TemplateName
from strategy.graph.signature import Signature
from strategy.ilp.solve import MAX_TOTAL_COST, solve
from strategy.space.layout_problem import LayoutProblem
from strategy.space.problem_builder import LinearProblem, Weighing
from strategy.space.restriction import complete

CLOSE_ENOUGH = 5e-4
"""By this part a template's bound may be below the cost that is found."""
FINENESS_BITS, MORE_BITS = 12, 18
"""Costs are such that the largest weight of a time has about so many bits, and its own so many more."""
LARGEST_BITS = 61
"""Of sums before they are made coarser."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A bound on the cost of a template's layouts, and the layouts found: their point and signatures."""

    cut: TemplateCut
    point: FloatArray
    signatures: Mapping[str, Signature]


def solve_template(
    name: TemplateName, template: LayerTemplate, weights: FloatArray, budget: Budget, enough_ns: float | None = None
) -> Chosen | TemplateCut:
    """What costs least; if no choice is legal, the cut that says so.

    Args:
        name: of the template.
        template: whose layouts.
        weights: (SIZE,), >= 0.
        budget: for it.
        enough_ns: a bound of so much is all that is wanted.

    Raises:
        OutOfTimeError: there was no time to find any.
    """
    weighing = _weighing(template.problem.linear, weights)
    problem: LayoutProblem = template.problem.at(weighing)
    enough = None if enough_ns is None else weighing.cost(enough_ns)
    solution = solve(problem.problem, budget=budget, gap=CLOSE_ENOUGH, enough=enough)
    if solution.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.status is Status.INFEASIBLE:
        return TemplateCut(name, weighing, None, solution.proof)
    if solution.choice is None:
        raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")
    # What has no price may be held for nobody, in the choice that was found.
    choice = complete(problem.problem, solution.choice[: len(problem.classes)])
    point = template.problem.linear.counted(choice).astype(np.float64)
    return Chosen(TemplateCut(name, weighing, solution.lower_bound, solution.proof), point, problem.signatures(choice))


def _weighing(linear: LinearProblem, weights: FloatArray) -> Weighing:
    """Weights so fine that sums are exact; where bytes weigh much more than time, costs are coarser."""
    largest, most = (max(float(one), 1e-300) for one in (weights[TIMES].max(), linear.most(weights)))
    bits = min(FINENESS_BITS + MORE_BITS - math.frexp(largest)[1], LARGEST_BITS - math.frexp(most)[1])
    coarse = max(FINENESS_BITS - math.frexp(largest)[1], -(2**10))
    coarse = min(coarse, math.frexp(MAX_TOTAL_COST / 2)[1] - 1 - math.frexp(most)[1])
    return Weighing.of(weights, bits, max(0, bits - coarse))
