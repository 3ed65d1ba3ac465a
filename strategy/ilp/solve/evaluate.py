"""Evaluation of one choice of the packed arrays' nodes: what it costs and holds. Picks are (N,) int64."""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled, in_place
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.packed_arrays import PackedArrays
from strategy.ilp.solve.packed_joins import cell_of


@in_place
def cost_of(arrays: PackedArrays, picks: IntArray) -> float:
    """The cost of a choice without the core's constant; `LEAST_FORBIDDEN` or more if it holds a forbidden entry."""
    total = 0.0
    for i in range(picks.size):
        total += arrays.cost[arrays.choice_at[i] + picks[i]]
    for e in range(arrays.tail.size):
        columns = arrays.head_at[e + 1] - arrays.head_at[e]
        total += arrays.table[arrays.table_at[e] + picks[arrays.tail[e]] * columns + picks[arrays.head[e]]]
    for j in range(arrays.joins.table_at.size):
        total += cell_of(arrays.joins, j, picks)
    return total


@compiled
def load_of(arrays: PackedArrays, picks: IntArray) -> FloatArray:
    """Memory of a choice above the least amounts, per row: (R,) float64."""
    load = np.zeros(arrays.room.size + 1, arrays.room.dtype)
    for i in range(picks.size):
        for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
            held = arrays.amount[arrays.span_start[s] + picks[i]]
            load[arrays.span_first[s]] += held
            load[arrays.span_last[s]] -= held
    for row in range(1, load.size):
        load[row] += load[row - 1]
    return load[:-1]


@compiled
def fits(arrays: PackedArrays, picks: IntArray) -> bool:
    """Whether a choice keeps within the room of every row."""
    load = load_of(arrays, picks)
    return bool(np.all(load <= arrays.room))
