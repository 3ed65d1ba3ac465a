"""A legal choice, then a cheaper one: coordinate descent that keeps memory.

While something is broken (a forbidden pair, a row above its room), what is broken has a weight that grows while
nothing moves (Morris 1993, the breakout method). Once nothing is broken, only moves that keep it so and lower the
cost are made.
"""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.evaluate import cost_of, load_of
from strategy.ilp.solve.packed_arrays import LEGAL, Flat

# Above every sum of legal costs and weighted excesses.
BIG = 1e300
# By how much weights grow while nothing moves.
FIRMER = 2.0


@compiled
def line_of(flat: Flat, costs: FloatArray, i: int, picks: IntArray, into: FloatArray, pair_weight: float) -> None:
    """What each choice of node i costs beside the other nodes' picks; a forbidden pair costs `pair_weight`."""
    begin = flat.first[i]
    size = flat.first[i + 1] - begin
    for c in range(size):
        into[c] = costs[begin + c]
    for k in range(flat.link_at[i], flat.link_at[i + 1]):
        e = flat.links[k]
        columns = flat.head_at[e + 1] - flat.head_at[e]
        if flat.head[e] == i:
            start = flat.at[e] + picks[flat.tail[e]] * columns
            for c in range(size):
                cell = flat.table[start + c]
                into[c] += cell if cell < LEGAL else pair_weight
        else:
            start = flat.at[e] + picks[flat.head[e]]
            for c in range(size):
                cell = flat.table[start + c * columns]
                into[c] += cell if cell < LEGAL else pair_weight


@compiled
def settle(flat: Flat, nodes: IntArray, picks: IntArray) -> None:
    """Moves `nodes`, which have no tables between them, to what is cheapest beside the other nodes' picks."""
    line = np.empty(np.diff(flat.first).max())
    for i in nodes:
        line_of(flat, flat.cost, i, picks, line, BIG / 1e50)
        best = 0
        for c in range(flat.first[i + 1] - flat.first[i]):
            if line[c] < line[best]:
                best = c
        picks[i] = best


@compiled
def hold(flat: Flat, i: int, old: int, new: int, load: FloatArray) -> None:
    """Changes the load as node i goes from one choice to another."""
    for s in range(flat.span_at[i], flat.span_at[i + 1]):
        more = flat.amount[flat.span_start[s] + new] - flat.amount[flat.span_start[s] + old]
        if more != 0:
            for row in range(flat.span_first[s], flat.span_last[s]):
                load[row] += more


@compiled
def _grown_fits(flat: Flat, i: int, old: int, new: int, load: FloatArray) -> bool:
    """Whether the rows in which node i now holds more have room; `load` is already changed."""
    for s in range(flat.span_at[i], flat.span_at[i + 1]):
        if flat.amount[flat.span_start[s] + new] > flat.amount[flat.span_start[s] + old]:
            for row in range(flat.span_first[s], flat.span_last[s]):
                if load[row] > flat.room[row]:
                    return False
    return True


@compiled
def repair(flat: Flat, costs: FloatArray, picks: IntArray, weight: float, sweeps: int, seed: int) -> int:
    """Changes `picks` until nothing is broken; returns the sweeps that this took, or -`sweeps` if it is not reached.

    Args:
        flat: the working copy.
        costs: of the choices: the nodes' own, or with memory priced.
        picks: rewritten.
        weight: cost of a byte above a row's room, to begin with.
        sweeps: visits of each node at most.
        seed: of the order of the visits.
    """
    nodes = picks.size
    np.random.seed(seed)
    load = load_of(flat, picks)
    order: IntArray = np.arange(nodes)
    widest = np.diff(flat.first).max()
    largest = 1.0
    for i in range(nodes):
        for c in range(flat.first[i], flat.first[i + 1]):
            largest = max(largest, costs[c])
    pair_weight = largest
    line = np.empty(widest)
    for turn in range(sweeps):
        np.random.shuffle(order)
        moved = False
        for step in range(nodes):
            i = int(order[step])
            size = flat.first[i + 1] - flat.first[i]
            pick = int(picks[i])
            if size == 1:
                continue
            line_of(flat, costs, i, picks, line, pair_weight)
            for s in range(flat.span_at[i], flat.span_at[i + 1]):
                start = flat.span_start[s]
                most = -BIG
                for row in range(flat.span_first[s], flat.span_last[s]):
                    most = max(most, load[row] - flat.room[row])
                most -= flat.amount[start + pick]
                for c in range(size):
                    line[c] += weight * max(0.0, most + flat.amount[start + c])
            best = pick
            for c in range(size):
                if line[c] < line[best] - 1e-9 * abs(line[best]):
                    best = c
            if best != pick:
                hold(flat, i, pick, best, load)
                picks[i] = best
                moved = True
        over = False
        for row in range(load.size):
            over = over or load[row] > flat.room[row]
        broken = cost_of(flat, picks) >= LEGAL
        if not over and not broken:
            return turn + 1
        if not moved:
            weight *= FIRMER if over else 1.0
            pair_weight *= FIRMER if broken else 1.0
            if weight > 1e100 or pair_weight > 1e100:
                return -sweeps
    return -sweeps


@compiled
def descend(flat: Flat, picks: IntArray, sweeps: int, seed: int) -> int:
    """Lowers the cost of a legal choice, node by node, and keeps it legal; returns the sweeps that this took."""
    nodes = picks.size
    np.random.seed(seed)
    load = load_of(flat, picks)
    order: IntArray = np.arange(nodes)
    widest = np.diff(flat.first).max()
    line = np.empty(widest)
    for turn in range(sweeps):
        np.random.shuffle(order)
        moved = False
        for step in range(nodes):
            i = int(order[step])
            size = flat.first[i + 1] - flat.first[i]
            if size == 1:
                continue
            line_of(flat, flat.cost, i, picks, line, BIG / 1e50)
            while True:
                pick = int(picks[i])
                best = pick
                for c in range(size):
                    if line[c] < line[best] - 1e-12 * abs(line[best]):
                        best = c
                if best == pick:
                    break
                hold(flat, i, pick, best, load)
                if _grown_fits(flat, i, pick, best, load):
                    picks[i] = best
                    moved = True
                    break
                hold(flat, i, best, pick, load)
                line[best] = BIG
        if not moved:
            return turn + 1
    return sweeps
