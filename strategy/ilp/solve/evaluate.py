"""What a choice of the arrays' nodes costs and holds."""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.packed_arrays import Flat
from strategy.ilp.solve.packed_joins import cell_of


@compiled
def cost_of(flat: Flat, picks: IntArray) -> float:
    """The cost of a choice without the core's constant; `LEGAL` or more if it holds a forbidden entry."""
    total = 0.0
    for i in range(picks.size):
        total += flat.cost[flat.first[i] + picks[i]]
    for e in range(flat.tail.size):
        columns = flat.head_at[e + 1] - flat.head_at[e]
        total += flat.table[flat.at[e] + picks[flat.tail[e]] * columns + picks[flat.head[e]]]
    for j in range(flat.joins.start.size):
        total += cell_of(flat.joins, j, picks)
    return total


@compiled
def load_of(flat: Flat, picks: IntArray) -> FloatArray:
    """Memory per row of a choice."""
    load = np.zeros(flat.room.size + 1, flat.room.dtype)
    for i in range(picks.size):
        for s in range(flat.span_at[i], flat.span_at[i + 1]):
            held = flat.amount[flat.span_start[s] + picks[i]]
            load[flat.span_first[s]] += held
            load[flat.span_last[s]] -= held
    for row in range(1, load.size):
        load[row] += load[row - 1]
    return load[:-1]


@compiled
def fits(flat: Flat, picks: IntArray) -> bool:
    """Whether a choice keeps within the room of every row."""
    load = load_of(flat, picks)
    return bool(np.all(load <= flat.room))
