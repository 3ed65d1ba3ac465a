"""Choosing signatures for the ops of one graph on given stages: by a greedy rule, or by the integer problem.

What runs a graph takes one of these as a function, and knows nothing of how the choice is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strategy.base.errors import InfeasibleError
from strategy.graph.signature import Signature
from strategy.ilp.solve import solve
from strategy.space.deduce import Deduction, deduce
from strategy.space.layout_problem import layout_problem
from strategy.space.space import SearchSpace

ChooseSignatures = Callable[[SearchSpace], Mapping[str, Signature]]
"""Op name -> signature, one of those that the space leaves; raises InfeasibleError if there is no legal choice."""


def deduced(rule: Deduction) -> ChooseSignatures:
    """The greedy choice, op by op, by a rule."""
    return lambda space: deduce(space.graph, space.stages, space.converter, space.allows, rule=rule)


def searched(space: SearchSpace) -> Mapping[str, Signature]:
    """The choice that costs least.

    Raises:
        InfeasibleError: no choice satisfies the constraints.
    """
    problem = layout_problem(space)
    solution = solve(problem.problem)
    if solution.choice is None:
        raise InfeasibleError("no layout satisfies the pins", hint="relax a pin")
    return problem.signatures(solution.choice)
