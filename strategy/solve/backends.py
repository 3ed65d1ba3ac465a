"""The two solvers that close a core: HiGHS (through MathOpt, floating point) and CP-SAT (exact integers).

On cores that the multipliers have shrunk (some hundred choices), CP-SAT proves the optimum three to five times
faster than HiGHS, and its proofs have no tolerance: it closes. HiGHS gives a first choice and a bound where the core
is still wide, and asks the question of feasibility in a second way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from strategy.errors import InternalError
from strategy.solve.linear import Linear

# HiGHS works to absolute tolerances of 1e-6 and less: coefficients beyond this are scaled down.
LARGEST_COEFFICIENT = 1e6
# What we take off a floating-point bound, relative to the largest sums behind it, before we round it.
BOUND_MARGIN = 1e-6


@dataclass(frozen=True, slots=True)
class Answer:
    """`picks` is a choice of the live nodes, `bound` holds for every legal choice; `infeasible` says there is none."""

    infeasible: bool
    picks: dict[int, int] | None
    bound: int | None


def solve_highs(program: Linear, *, time_limit_s: float) -> Answer:
    """HiGHS on one program. Its choice may break a memory row by a rounding error: the caller evaluates it."""
    from ortools.math_opt import model_pb2
    from ortools.math_opt.python import mathopt

    size, count = program.objective.size, program.lower.size
    model = model_pb2.ModelProto()
    model.variables.ids.extend(range(size))
    model.variables.lower_bounds.extend([0.0] * size)
    model.variables.upper_bounds.extend([1.0] * size)
    model.variables.integers.extend([column < program.integral for column in range(size)])
    cost_scale = max(float(np.abs(program.objective).max(initial=0)) / LARGEST_COEFFICIENT, 1.0)
    model.objective.linear_coefficients.ids.extend(range(size))
    model.objective.linear_coefficients.values.extend((program.objective / cost_scale).tolist())
    rows = np.repeat(np.arange(count), np.diff(program.starts))
    row_scale = np.ones(count)
    np.maximum.at(row_scale, rows, np.abs(program.values).astype(np.float64))
    model.linear_constraints.ids.extend(range(count))
    model.linear_constraints.lower_bounds.extend((program.lower / row_scale).tolist())
    model.linear_constraints.upper_bounds.extend((program.upper / row_scale).tolist())
    order = np.lexsort((program.columns, rows))
    model.linear_constraint_matrix.row_ids.extend(rows.tolist())
    model.linear_constraint_matrix.column_ids.extend(program.columns[order].tolist())
    model.linear_constraint_matrix.coefficients.extend((program.values / row_scale[rows])[order].tolist())
    limit = None if math.isinf(time_limit_s) else timedelta(seconds=max(time_limit_s, 0.01))
    parameters = mathopt.SolveParameters(
        time_limit=limit, relative_gap_tolerance=0.0, absolute_gap_tolerance=0.0, random_seed=1
    )
    result = mathopt.solve(mathopt.Model.from_model_proto(model), mathopt.SolverType.HIGHS, params=parameters)
    if result.termination.reason == mathopt.TerminationReason.INFEASIBLE:
        return Answer(infeasible=True, picks=None, bound=None)
    picks = None
    if result.has_primal_feasible_solution():
        values = result.variable_values()
        by_column = np.zeros(size)
        for variable, value in values.items():
            by_column[variable.id] = value
        picks = _picks(program, by_column)
    scaled = result.best_objective_bound()
    bound = None
    if math.isfinite(scaled):
        margin = BOUND_MARGIN * max(abs(scaled), 1.0)
        bound = math.ceil((scaled - margin) * cost_scale)
    return Answer(infeasible=False, picks=picks, bound=bound)


def solve_cp_sat(
    program: Linear, *, time_limit_s: float, below: int | None = None, hint: dict[int, int] | None = None
) -> Answer:
    """CP-SAT on one program, one worker, exact; with `below` only choices that cost less are legal."""
    from ortools.sat.python import cp_model

    wrapper = cp_model.CpModel()
    model = wrapper.proto
    size = program.objective.size
    for _ in range(size):
        model.variables.add().domain.extend((0, 1))
    columns, values = program.columns.tolist(), program.values.tolist()
    for row, (lower, upper) in enumerate(zip(program.lower.tolist(), program.upper.tolist(), strict=True)):
        begin, end = int(program.starts[row]), int(program.starts[row + 1])
        constraint = model.constraints.add()
        if row < len(program.first):
            constraint.exactly_one.literals.extend(columns[begin:end])
        else:
            constraint.linear.vars.extend(columns[begin:end])
            constraint.linear.coeffs.extend(values[begin:end])
            constraint.linear.domain.extend((lower, upper))
    priced = np.flatnonzero(program.objective)
    model.objective.vars.extend(priced.tolist())
    model.objective.coeffs.extend(program.objective[priced].tolist())
    if below is not None:
        model.objective.domain.extend((0, below - 1))
    if hint is not None:
        for node, pick in hint.items():
            model.solution_hint.vars.append(program.first[node] + pick)
            model.solution_hint.values.append(1)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.linearization_level = 2
    if not math.isinf(time_limit_s):
        solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
    status = solver.solve(wrapper)
    if status == cp_model.MODEL_INVALID:
        raise InternalError(f"CP-SAT calls our model invalid: {wrapper.validate()}")
    if status == cp_model.INFEASIBLE:
        return Answer(infeasible=True, picks=None, bound=None)
    picks = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        picks = _picks(program, solver.response_proto.solution)
    bound = None
    if math.isfinite(solver.best_objective_bound):
        bound = solver.response_proto.inner_objective_lower_bound
    return Answer(infeasible=False, picks=picks, bound=bound)


def _picks(program: Linear, values: npt.ArrayLike) -> dict[int, int]:
    """The largest entry of each node's columns."""
    bounds = [*program.first.values(), program.integral]
    array = np.asarray(values, np.float64)
    return {
        node: int(array[begin:end].argmax())
        for node, begin, end in zip(program.first, bounds, bounds[1:], strict=False)
    }
