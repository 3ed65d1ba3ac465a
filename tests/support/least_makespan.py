"""The least makespan over all ways of spreading totals over the stages: a linear program over the schedule's chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order, position_of


def least_makespan(
    schedule: Schedule, p: int, m: int, laps: int, *, forward: float, backward: float, weight: float, step: float
) -> float:
    """By HiGHS, without messages."""
    program = _Program()
    for stage in range(p):
        before: Any = "begin", stage
        program.at_most({("step", "before", stage): 1, before: -1})
        for chunk in chunk_order(schedule, p, stage, m, laps):
            place = position_of(schedule, p, stage, chunk.lap)
            lasts = {("time", chunk.phase, place): 1}
            if chunk.phase is Phase.BACKWARD and not schedule.splits_backward:
                lasts["time", Phase.WEIGHT, place] = 1
            end = chunk.phase, place, chunk.micro_batch
            program.at_most({before: 1, **lasts, end: -1})
            source = place + (-1 if chunk.phase is Phase.FORWARD else 1)
            if chunk.phase is not Phase.WEIGHT and 0 <= source < p * laps:
                program.at_most({(chunk.phase, source, chunk.micro_batch): 1, **lasts, end: -1})
            before = end
        program.at_most({before: 1, ("step", "after", stage): 1, "makespan": -1})
    for phase, total in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward), (Phase.WEIGHT, weight)):
        program.equals([("time", phase, place) for place in range(p * laps)], total)
    program.equals([("step", when, stage) for when in ("before", "after") for stage in range(p)], step)
    return program.least("makespan")


class _Program:
    """Rows of names and their factors; all that has a name is at least zero."""

    def __init__(self) -> None:
        self.columns: dict[Any, int] = {}
        self.rows: list[dict[int, float]] = []
        self.sums: list[tuple[dict[int, float], float]] = []

    def at_most(self, row: dict[Any, float]) -> None:
        """The sum is at most zero."""
        self.rows.append({self._column(name): factor for name, factor in row.items()})

    def equals(self, names: list[Any], total: float) -> None:
        """The names sum up to a total."""
        self.sums.append(({self._column(name): 1.0 for name in names}, total))

    def least(self, name: Any) -> float:
        """The least that a name can be."""
        cost = np.zeros(len(self.columns))
        cost[self._column(name)] = 1
        sums, totals = zip(*self.sums, strict=True)
        found = linprog(cost, self._matrix(self.rows), np.zeros(len(self.rows)), self._matrix(sums), totals)
        assert found.status == 0, found.message
        return float(found.fun)

    def _column(self, name: Any) -> int:
        return self.columns.setdefault(name, len(self.columns))

    def _matrix(self, rows: Any) -> Any:
        entries = [(factor, i, j) for i, row in enumerate(rows) for j, factor in row.items()]
        factors, i, j = zip(*entries, strict=True)
        return csr_array((factors, (i, j)), shape=(len(rows), len(self.columns)))
