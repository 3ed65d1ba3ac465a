"""Forest moves: many nodes at once, to the exact best over an induced forest, all others staying where they are.

Dynamic programming over induced trees is the tree-block move of Hamze and de Freitas (2004, UAI) taken to its minimum.
Memory enters through prices, so a move may break a limit; the caller repairs or refuses it.

Shapes, as in `packed_arrays`: N nodes, C choices in all, F nodes of the forest. Picks are (N,) int64, costs (C,)
float64; `inside` (N,) tells which nodes are of the forest, `value` and its parts the cost of each choice of these,
with the best of what hangs below it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import compiled, in_place
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.packed_arrays import PackedArrays
from strategy.ilp.solve.packed_joins import BIG

BoolArray = npt.NDArray[np.bool_]


@compiled
def random_region(arrays: PackedArrays, most: int, seed: int) -> IntArray:
    """At most `most` nodes around a random one, by breadth first, shuffled; all N nodes if `most` is not less."""
    nodes = arrays.choice_at.size - 1
    np.random.seed(seed)
    if most >= nodes:
        return np.random.permutation(nodes)
    seen = np.zeros(nodes, np.bool_)
    queue = np.empty(nodes, np.int64)
    filled = 0
    read = 0
    while filled < most:
        if read == filled:
            i = np.random.randint(nodes)
            if seen[i]:
                continue
            seen[i] = True
            queue[filled] = i
            filled += 1
        i = queue[read]
        read += 1
        for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
            e = arrays.links[k]
            j = arrays.tail[e] + arrays.head[e] - i
            if not seen[j] and filled < most:
                seen[j] = True
                queue[filled] = j
                filled += 1
    chosen = queue[:filled]
    np.random.shuffle(chosen)
    return chosen


@compiled
def optimise_forest(arrays: PackedArrays, costs: FloatArray, picks: IntArray, candidates: IntArray) -> None:
    """Moves `picks` (N,) to the best over a forest among `candidates` (any,), which are taken greedily in order.

    A candidate that would close a cycle stays where it is. `costs` (C,) are those of the choices, memory priced.
    """
    inside = _forest_among(arrays, candidates)
    parent = np.full(picks.size, -1)
    order = _by_breadth(arrays, candidates, inside, parent)
    position = np.full(picks.size, -1)  # (N,) in `order`
    at = np.empty(order.size + 1, np.int64)  # (F+1,) the choices of the k-th node, in `value`
    at[0] = 0
    for k in range(order.size):
        i = order[k]
        position[i] = k
        at[k + 1] = at[k] + arrays.choice_at[i + 1] - arrays.choice_at[i]
    value = np.empty(at[order.size])
    _own_costs(arrays, costs, picks, inside, order, at, value)
    _hang_below(arrays, order, parent, position, at, value)
    _pick_from_roots(arrays, order, parent, at, value, picks)


@compiled
def _forest_among(arrays: PackedArrays, candidates: IntArray) -> BoolArray:
    """(N,) whether a node is of the forest: a candidate joins unless it has two neighbours in one tree.

    Trees are told apart by union-find: `leader` (N,) points towards the leader of a node's tree.
    """
    nodes = arrays.choice_at.size - 1
    inside = np.zeros(nodes, np.bool_)
    leader = np.arange(nodes)
    roots = np.empty(nodes, np.int64)  # trees that the candidate touches
    for i in candidates:
        count = 0
        joins = True
        for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
            e = arrays.links[k]
            j = arrays.tail[e] + arrays.head[e] - i
            if inside[j]:
                while leader[j] != j:
                    leader[j] = leader[leader[j]]
                    j = leader[j]
                for q in range(count):
                    if roots[q] == j:
                        joins = False
                if not joins:
                    break
                roots[count] = j
                count += 1
        if joins:
            inside[i] = True
            for q in range(count):
                leader[roots[q]] = i
    return inside


@compiled
def _by_breadth(arrays: PackedArrays, candidates: IntArray, inside: BoolArray, parent: IntArray) -> IntArray:
    """(F,) the nodes of every tree from its root; writes the edge to the node above into `parent` (N,)."""
    order = np.empty(candidates.size, np.int64)
    filled = 0
    read = 0
    seen = np.zeros(inside.size, np.bool_)
    for seed in candidates:
        if not inside[seed] or seen[seed]:
            continue
        seen[seed] = True
        order[filled] = seed
        filled += 1
        while read < filled:
            i = order[read]
            read += 1
            for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
                e = arrays.links[k]
                j = arrays.tail[e] + arrays.head[e] - i
                if inside[j] and not seen[j]:
                    seen[j] = True
                    parent[j] = e
                    order[filled] = j
                    filled += 1
    return order[:filled]


@in_place
def _own_costs(
    arrays: PackedArrays,
    costs: FloatArray,
    picks: IntArray,
    inside: BoolArray,
    order: IntArray,
    at: IntArray,
    value: FloatArray,
) -> None:
    """Writes what each choice costs, with its node's tables to neighbours that stay at their picks."""
    for k in range(order.size):
        i = order[k]
        begin = arrays.choice_at[i]
        size = arrays.choice_at[i + 1] - begin
        mine = value[at[k] : at[k + 1]]
        for c in range(size):
            mine[c] = costs[begin + c]
        for q in range(arrays.link_at[i], arrays.link_at[i + 1]):
            e = arrays.links[q]
            j = arrays.tail[e] + arrays.head[e] - i
            if inside[j]:
                continue
            columns = arrays.head_at[e + 1] - arrays.head_at[e]
            if arrays.head[e] == i:
                start = arrays.table_at[e] + picks[j] * columns
                for c in range(size):
                    mine[c] += arrays.table[start + c]
            else:
                start = arrays.table_at[e] + picks[j]
                for c in range(size):
                    mine[c] += arrays.table[start + c * columns]


@in_place
def _hang_below(
    arrays: PackedArrays, order: IntArray, parent: IntArray, position: IntArray, at: IntArray, value: FloatArray
) -> None:
    """Adds to each choice, leaves first, the least that every node below costs beside it."""
    for k in range(order.size - 1, -1, -1):
        i = order[k]
        e = parent[i]
        if e < 0:
            continue
        j = arrays.tail[e] + arrays.head[e] - i
        mine = value[at[k] : at[k + 1]]
        above = value[at[position[j]] : at[position[j] + 1]]
        columns = arrays.head_at[e + 1] - arrays.head_at[e]
        for c in range(above.size):
            least = BIG
            if arrays.head[e] == i:
                start = arrays.table_at[e] + c * columns
                for d in range(mine.size):
                    least = min(least, arrays.table[start + d] + mine[d])
            else:
                start = arrays.table_at[e] + c
                for d in range(mine.size):
                    least = min(least, arrays.table[start + d * columns] + mine[d])
            above[c] += least


@in_place
def _pick_from_roots(
    arrays: PackedArrays, order: IntArray, parent: IntArray, at: IntArray, value: FloatArray, picks: IntArray
) -> None:
    """Writes the best choice of every node, roots first, beside the pick of the node above."""
    for k in range(order.size):
        i = order[k]
        e = parent[i]
        mine = value[at[k] : at[k + 1]]
        best = 0
        least = BIG
        for c in range(mine.size):
            total = mine[c]
            if e >= 0:
                j = arrays.tail[e] + arrays.head[e] - i
                columns = arrays.head_at[e + 1] - arrays.head_at[e]
                if arrays.head[e] == i:
                    total += arrays.table[arrays.table_at[e] + picks[j] * columns + c]
                else:
                    total += arrays.table[arrays.table_at[e] + c * columns + picks[j]]
            if total < least:
                least = total
                best = c
        picks[i] = best
