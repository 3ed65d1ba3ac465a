"""Alpa's integer program, solved by HiGHS.

Source: Alpa (Zheng et al. 2022, arXiv:2201.12023), section 4.2 and `auto_sharding.py`:

    minimise  sum_i c_i . s_i + sum_ij r_ij . e_ij
    s_i one-hot;  e_ij >= 0, its rows sum to s_i and its columns to s_j;  memory at every time at most the limit

with e_ij linearised as there; it need not be declared integral, because it is where s is. Alpa solves it with CBC,
after merging some nodes by hand; here HiGHS gets all of it. The optimum is proved within HiGHS's tolerances, so the
bound is no exact one, and a choice that the tolerance lets over the limit is brought back by `repair`.

Alpa's figures (2,393 s of compilation for GPT-39B on 64 GPUs) include its profiling and its inter-operator search, and
cannot be repeated here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from strategy.base.budget import Budget
from strategy.ilp.baselines.memory import REPAIR_S, Memory, repair
from strategy.ilp.baselines.tables import CostTables, FloatArray, Found, build_tables
from strategy.ilp.problem import Problem

# HiGHS presolves for minutes, and in gigabytes, beyond about so many columns or entries.
MAX_COLUMNS = 1_000_000
MAX_ENTRIES = 8_000_000


def integer_program(problem: Problem, budget: Budget) -> Found:
    """The choice and bound of HiGHS; none where the program is too large for it."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if not problem.nodes:
        return Found((), 0)
    tables = build_tables(problem)
    first = np.cumsum([0, *(costs.size for costs in tables.costs)]).tolist()
    columns = first[-1] + sum(table.size for pairs in tables.tables for table in pairs.values()) // 2
    if columns > MAX_COLUMNS:
        return Found(None, note=f"too large: {columns} columns")
    program = _Program(np.concatenate(tables.costs))
    _choose_one(program, tables, first)
    _link_pairs(program, tables, first)
    _limit_memory(program, problem, first)
    entries = sum(len(row) for row in program.columns)
    if entries > MAX_ENTRIES:
        return Found(None, note=f"too large: {entries} entries")
    objective = program.objective
    scale = max(1.0, float(objective[np.isfinite(objective)].max(initial=0.0)) / 1e6)
    starts = np.cumsum([0, *(len(row) for row in program.columns)])
    matrix = csr_array(
        (np.concatenate(program.values), np.concatenate(program.columns), starts),
        shape=(len(program.columns), objective.size),
    )
    left_s = budget.left_s()
    if left_s <= 0:
        return Found(None, note="no time left to solve")
    answer = milp(
        np.where(np.isinf(objective), 0.0, objective) / scale,
        integrality=np.arange(objective.size) < first[-1],
        bounds=Bounds(0, np.where(np.isinf(objective), 0.0, 1.0)),
        constraints=LinearConstraint(matrix, program.lower, program.upper),
        options={"time_limit": left_s, "mip_rel_gap": 0.0},
    )
    bound = None if answer.mip_dual_bound is None else _floor(answer.mip_dual_bound * scale)
    if answer.x is None:
        return Found(None, bound, note=str(answer.message))
    picks = [int(np.argmax(answer.x[begin:end])) for begin, end in itertools.pairwise(first)]
    return Found(repair(problem, tables, picks, Budget.of(REPAIR_S)), bound)


def _floor(bound: float) -> int | None:
    return math.floor(bound) if math.isfinite(bound) else None


@dataclass(slots=True)
class _Program:
    """Rows of columns and values between bounds; the first columns of the objective are those of s."""

    objective: FloatArray
    columns: list[Sequence[int]] = field(default_factory=list)
    values: list[Sequence[float]] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, columns: Sequence[int], values: Sequence[float], lower: float, upper: float) -> None:
        """One row."""
        self.columns.append(columns)
        self.values.append(values)
        self.lower.append(lower)
        self.upper.append(upper)


def _choose_one(program: _Program, tables: CostTables, first: Sequence[int]) -> None:
    for begin, costs in zip(first, tables.costs, strict=False):
        program.add(range(begin, begin + costs.size), [1.0] * costs.size, 1.0, 1.0)


def _link_pairs(program: _Program, tables: CostTables, first: Sequence[int]) -> None:
    width, objective = program.objective.size, [program.objective]
    for node, pairs in enumerate(tables.tables):
        for other, table in pairs.items():
            if other < node:
                continue
            cells = width + np.arange(table.size).reshape(table.shape)
            width += table.size
            objective.append(table.ravel())
            for side, lines in ((node, cells), (other, cells.T)):
                for choice, line in enumerate(lines):
                    program.add([first[side] + choice, *line.tolist()], [-1.0] + [1.0] * line.size, 0.0, 0.0)
    program.objective = np.concatenate(objective)


def _limit_memory(program: _Program, problem: Problem, first: Sequence[int]) -> None:
    if problem.limit is None:
        return
    unit = max(problem.limit, 1)
    for held in _held_together(Memory(problem, [-1] * len(problem.nodes))):
        columns = [first[node] + choice for node, amounts in held for choice in np.flatnonzero(amounts).tolist()]
        values = [amount / unit for _, amounts in held for amount in amounts[amounts != 0].tolist()]
        program.add(columns, values, -np.inf, problem.limit / unit)


def _held_together(memory: Memory) -> Iterator[list[tuple[int, FloatArray]]]:
    """What is alive at each instant that ends with something's end after something began: no others can be peaks."""
    starting: dict[int, list[tuple[int, FloatArray]]] = {}
    ending: dict[int, list[int]] = {}
    for node, pieces in enumerate(memory.pieces):
        for begin, end, amounts in pieces:
            starting.setdefault(begin, []).append((node, amounts))
            ending.setdefault(end, []).append(node)
    alive: dict[int, FloatArray] = {}
    grown = False
    for at in sorted({*starting, *ending}):
        gone = ending.get(at, [])
        if gone and grown:
            yield list(alive.items())
            grown = False
        for node in gone:
            del alive[node]
        for node, amounts in starting.get(at, []):
            alive[node] = amounts
            grown = True
