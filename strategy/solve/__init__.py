"""Exact solver of `strategy.problem.Problem`: one option per node, least cost, memory limited at every time."""

from strategy.solve.brute_force import brute_force
from strategy.solve.peak import PeakLimitError, smallest_limit
from strategy.solve.solution import Solution, SolveStatus
from strategy.solve.solver import solve

__all__ = ["PeakLimitError", "Solution", "SolveStatus", "brute_force", "smallest_limit", "solve"]
