"""Coordinate descent with memory: a choice is repaired until it is legal, then made cheaper, node by node.

While something is broken (a forbidden pair, a row above its room), what is broken has a weight that grows while
nothing moves (Morris 1993, the breakout method). Once nothing is broken, only moves that keep it so and lower the
cost are made (iterated conditional modes, Besag 1986).

Shapes, as in `packed_arrays`: N nodes, C choices in all, C_i of node i, R memory rows, W = max C_i. Picks are (N,)
int64, loads (R,) float64, costs (C,) float64.
"""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled, in_place
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.evaluate import cost_of, load_of
from strategy.ilp.solve.packed_arrays import LEAST_FORBIDDEN, PackedArrays
from strategy.ilp.solve.packed_joins import BIG

# By how much weights grow while nothing moves.
FIRMER = 2.0


@in_place
def conditional_costs(
    arrays: PackedArrays, costs: FloatArray, i: int, picks: IntArray, into: FloatArray, pair_weight: float
) -> None:
    """Writes what each choice of node i costs beside the other nodes' picks into `into` (W,).

    `costs` (C,) are those of the choices; a forbidden pair costs `pair_weight`.
    """
    begin = arrays.choice_at[i]
    size = arrays.choice_at[i + 1] - begin
    for c in range(size):
        into[c] = costs[begin + c]
    for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
        e = arrays.links[k]
        columns = arrays.head_at[e + 1] - arrays.head_at[e]
        if arrays.head[e] == i:
            start = arrays.table_at[e] + picks[arrays.tail[e]] * columns
            for c in range(size):
                cell = arrays.table[start + c]
                into[c] += cell if cell < LEAST_FORBIDDEN else pair_weight
        else:
            start = arrays.table_at[e] + picks[arrays.head[e]]
            for c in range(size):
                cell = arrays.table[start + c * columns]
                into[c] += cell if cell < LEAST_FORBIDDEN else pair_weight


@compiled
def minimise_conditionally(arrays: PackedArrays, nodes: IntArray, picks: IntArray) -> None:
    """Moves `nodes` (any,), which have no tables between them, to what is cheapest beside the other nodes' picks."""
    line = np.empty(np.diff(arrays.choice_at).max())
    for i in nodes:
        conditional_costs(arrays, arrays.cost, i, picks, line, BIG / 1e50)
        best = 0
        for c in range(arrays.choice_at[i + 1] - arrays.choice_at[i]):
            if line[c] < line[best]:
                best = c
        picks[i] = best


@in_place
def change_load(arrays: PackedArrays, i: int, old: int, new: int, load: FloatArray) -> None:
    """Changes `load` (R,) as node i goes from choice `old` to `new`."""
    for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
        more = arrays.amount[arrays.span_start[s] + new] - arrays.amount[arrays.span_start[s] + old]
        if more != 0:
            for row in range(arrays.span_first[s], arrays.span_last[s]):
                load[row] += more


@in_place
def _grown_fits(arrays: PackedArrays, i: int, old: int, new: int, load: FloatArray) -> bool:
    """Whether the rows in which node i now holds more have room; `load` (R,) is already changed."""
    for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
        if arrays.amount[arrays.span_start[s] + new] > arrays.amount[arrays.span_start[s] + old]:
            for row in range(arrays.span_first[s], arrays.span_last[s]):
                if load[row] > arrays.room[row]:
                    return False
    return True


@compiled
def repair(arrays: PackedArrays, costs: FloatArray, picks: IntArray, weight: float, sweeps: int, seed: int) -> int:
    """Changes `picks` until nothing is broken; returns the sweeps that this took, or -`sweeps` if it is not reached.

    Args:
        arrays: the working copy.
        costs: (C,), the nodes' own, or with memory priced.
        picks: (N,), rewritten.
        weight: cost of a byte above a row's room, to begin with.
        sweeps: visits of each node at most.
        seed: of the order of the visits.
    """
    nodes = picks.size
    np.random.seed(seed)
    load = load_of(arrays, picks)
    order: IntArray = np.arange(nodes)
    widest = np.diff(arrays.choice_at).max()
    largest = 1.0
    for i in range(nodes):
        for c in range(arrays.choice_at[i], arrays.choice_at[i + 1]):
            largest = max(largest, costs[c])
    pair_weight = largest
    line = np.empty(widest)  # (W,) what each choice of the node would cost
    for turn in range(sweeps):
        np.random.shuffle(order)
        moved = False
        for step in range(nodes):
            i = int(order[step])
            size = arrays.choice_at[i + 1] - arrays.choice_at[i]
            pick = int(picks[i])
            if size == 1:
                continue
            conditional_costs(arrays, costs, i, picks, line, pair_weight)
            for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
                start = arrays.span_start[s]
                most = -BIG
                for row in range(arrays.span_first[s], arrays.span_last[s]):
                    most = max(most, load[row] - arrays.room[row])
                most -= arrays.amount[start + pick]
                for c in range(size):
                    line[c] += weight * max(0.0, most + arrays.amount[start + c])
            best = pick
            for c in range(size):
                if line[c] < line[best] - 1e-9 * abs(line[best]):
                    best = c
            if best != pick:
                change_load(arrays, i, pick, best, load)
                picks[i] = best
                moved = True
        over = False
        for row in range(load.size):
            over = over or load[row] > arrays.room[row]
        broken = cost_of(arrays, picks) >= LEAST_FORBIDDEN
        if not over and not broken:
            return turn + 1
        if not moved:
            weight *= FIRMER if over else 1.0
            pair_weight *= FIRMER if broken else 1.0
            if weight > 1e100 or pair_weight > 1e100:
                return -sweeps
    return -sweeps


@compiled
def descend(arrays: PackedArrays, picks: IntArray, sweeps: int, seed: int) -> int:
    """Lowers the cost of the legal choice `picks` (N,), which stays legal; returns the sweeps that this took."""
    nodes = picks.size
    np.random.seed(seed)
    load = load_of(arrays, picks)
    order: IntArray = np.arange(nodes)
    widest = np.diff(arrays.choice_at).max()
    line = np.empty(widest)  # (W,) what each choice of the node would cost
    for turn in range(sweeps):
        np.random.shuffle(order)
        moved = False
        for step in range(nodes):
            i = int(order[step])
            size = arrays.choice_at[i + 1] - arrays.choice_at[i]
            if size == 1:
                continue
            conditional_costs(arrays, arrays.cost, i, picks, line, BIG / 1e50)
            while True:
                pick = int(picks[i])
                best = pick
                for c in range(size):
                    if line[c] < line[best] - 1e-12 * abs(line[best]):
                        best = c
                if best == pick:
                    break
                change_load(arrays, i, pick, best, load)
                if _grown_fits(arrays, i, pick, best, load):
                    picks[i] = best
                    moved = True
                    break
                change_load(arrays, i, best, pick, load)
                line[best] = BIG
        if not moved:
            return turn + 1
    return sweeps
