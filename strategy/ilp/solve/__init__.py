"""Exact solver of `strategy.ilp.problem.Problem`: one option per node, least cost, memory limited at every time."""

from strategy.ilp.solve.brute_force import brute_force
from strategy.ilp.solve.build import largest_cost
from strategy.ilp.solve.core import MAX_TOTAL_COST
from strategy.ilp.solve.memory_feasibility import PeakLimitError, smallest_limit
from strategy.ilp.solve.solution import Solution
from strategy.ilp.solve.solver import solve

__all__ = ["MAX_TOTAL_COST", "PeakLimitError", "Solution", "brute_force", "largest_cost", "smallest_limit", "solve"]
