"""What others do with the same problem: methods of published systems, each small, to be compared with our solver.

All take a problem and a budget of time and answer with a legal choice or none. They share arrays (`tables`) and
what keeps them within a memory limit (`memory`), and nothing with `strategy.ilp.solve`.
"""

from collections.abc import Callable, Mapping

from strategy.base.budget import Budget
from strategy.ilp.baselines.coordinate_descent import coordinate_descent
from strategy.ilp.baselines.elimination import elimination
from strategy.ilp.baselines.greedy import greedy
from strategy.ilp.baselines.integer_program import integer_program
from strategy.ilp.baselines.mcmc import mcmc
from strategy.ilp.baselines.tables import Found
from strategy.ilp.problem import Problem

Baseline = Callable[[Problem, Budget], Found]

BASELINES: Mapping[str, Baseline] = {
    "greedy": greedy,
    "elimination": elimination,
    "integer-program": integer_program,
    "coordinate-descent": coordinate_descent,
    "mcmc": mcmc,
}

__all__ = ["BASELINES", "Baseline", "Found", "coordinate_descent", "elimination", "greedy", "integer_program", "mcmc"]
