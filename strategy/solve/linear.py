"""A core as an integer linear program, each edge written by the classes of equal rows and columns of its table.

    x[i, c] in {0, 1}         node i takes choice c;                    sum_c x[i, c] = 1
    y[e, R, S] >= 0           edge e sees row class R and column class S; legal pairs of classes only
    sum_S y[e, R, S] = sum_{c in R} x[tail, c]        for every row class R
    sum_R y[e, R, S] = sum_{d in S} x[head, d]        for every column class S
    sum of amounts * x <= room                        for every memory row

Given integral x the only solution is y = product of the two class indicators, hence y need not be integral. With
full classes this is the local polytope; classes keep its strength for a fraction of its size. All figures are integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.problem import FORBIDDEN
from strategy.solve.core import Core, IntArray, NoChoiceError


@dataclass(frozen=True, slots=True)
class Linear:
    """minimise objective * z subject to lower <= A z <= upper, z in [0, 1], the first `integral` entries integers.

    A is in row-major coordinates: `starts[r]:starts[r + 1]` are the entries of row r in `columns` and `values`.
    `first[i]` is the column of choice 0 of node i.
    """

    objective: IntArray
    integral: int
    starts: IntArray
    columns: IntArray
    values: IntArray
    lower: IntArray
    upper: IntArray
    first: dict[int, int]


def linearise(core: Core) -> Linear:
    """The program of a core; its optimum plus `core.constant` is the core's.

    Raises:
        NoChoiceError: even the least amounts exceed a memory row.
    """
    if core.room.min(initial=0) < 0:
        raise NoChoiceError
    first: dict[int, int] = {}
    width = 0
    for node, cost in core.costs.items():
        first[node] = width
        width += cost.size
    objective = list(core.costs.values())
    rows: list[tuple[IntArray, IntArray, int, int]] = [
        (first[node] + np.arange(cost.size), np.ones(cost.size, np.int64), 1, 1) for node, cost in core.costs.items()
    ]
    integral = width
    for node, tables in core.tables.items():
        core.check_time()
        for other, table in tables.items():
            if node > other:
                continue
            lines, row_class = np.unique(table, axis=0, return_inverse=True)
            cells, column_class = np.unique(lines, axis=1, return_inverse=True)
            legal = cells < FORBIDDEN
            index = width + np.cumsum(legal).reshape(legal.shape) - 1
            width += int(legal.sum())
            objective.append(cells[legal])
            rows.extend(
                _flow(index[k][legal[k]], first[node] + np.flatnonzero(row_class == k)) for k in range(cells.shape[0])
            )
            rows.extend(
                _flow(index[:, k][legal[:, k]], first[other] + np.flatnonzero(column_class == k))
                for k in range(cells.shape[1])
            )
    rows.extend(_memory_rows(core, first))
    return Linear(
        objective=np.concatenate(objective) if objective else np.zeros(0, np.int64),
        integral=integral,
        starts=np.concatenate(([0], np.cumsum([row[0].size for row in rows]))).astype(np.int64),
        columns=np.concatenate([row[0] for row in rows]) if rows else np.zeros(0, np.int64),
        values=np.concatenate([row[1] for row in rows]) if rows else np.zeros(0, np.int64),
        lower=np.array([row[2] for row in rows], np.int64),
        upper=np.array([row[3] for row in rows], np.int64),
        first=first,
    )


def _flow(pairs: IntArray, choices: IntArray) -> tuple[IntArray, IntArray, int, int]:
    """What leaves through the class pairs is what enters through the choices of the class."""
    values = np.concatenate((np.ones(pairs.size, np.int64), -np.ones(choices.size, np.int64)))
    return np.concatenate((pairs, choices)), values, 0, 0


def _memory_rows(core: Core, first: dict[int, int]) -> list[tuple[IntArray, IntArray, int, int]]:
    rows = []
    for row, room in enumerate(core.room.tolist()):
        held: dict[int, IntArray] = {}
        for node, spans in core.spans.items():
            for (begin, end), amounts in spans.items():
                if begin <= row < end:
                    held[node] = held[node] + amounts if node in held else amounts
        columns = [first[node] + np.flatnonzero(amounts) for node, amounts in held.items()]
        values = [amounts[amounts != 0] for amounts in held.values()]
        if columns:
            joined = np.concatenate(values)
            rows.append((np.concatenate(columns), joined, 0, min(room, int(joined.sum()))))
    return rows
