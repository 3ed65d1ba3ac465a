"""Template solve: what the layouts of a template cost at least under weights, and the layouts that were found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.base.status import Status
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import TIMES, FloatArray
from strategy.graph.signature import Signature
from strategy.ilp.solve import MAX_TOTAL_COST, solve
from strategy.space.layout_problem import LayoutProblem
from strategy.space.restriction import complete

CLOSE_ENOUGH = 2e-4
"""By this part a template's bound may be below the cost that is found."""
FINENESS = 2.0**12
"""What the largest weight of a time is made at most: costs are whole numbers."""


def solve_template(
    template: LayerTemplate, weights: FloatArray, budget: Budget
) -> tuple[float, Mapping[str, Signature], FloatArray]:
    """(bound on the cost, the signatures found, the point that they are).

    Args:
        template: whose.
        weights: (SIZE,), >= 0.
        budget: for it.

    Raises:
        InfeasibleError: no choice is legal.
        OutOfTimeError: there was no time to find any.
    """
    scale = FINENESS / max(float(weights[TIMES].max()), 1e-300)
    # Where bytes weigh much more than time, costs are coarser: they have to be added exactly.
    linear = template.problem.linear
    scale = min(scale, MAX_TOTAL_COST / 2 / max(linear.most(weights), 1e-300))
    problem: LayoutProblem = template.problem.at(weights * scale)
    solution = solve(problem.problem, budget=budget, gap=CLOSE_ENOUGH)
    if solution.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if solution.status is Status.INFEASIBLE:
        raise InfeasibleError("no conversions lead between the layouts that the pins leave", hint="relax a pin")
    if solution.choice is None:
        raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")
    # What has no price may be held for nobody, in the choice that was found.
    choice = complete(problem.problem, solution.choice[: len(problem.classes)])
    point = linear.counted(choice).astype(np.float64)
    return solution.lower_bound / scale, problem.signatures(choice), point
