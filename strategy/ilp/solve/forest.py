"""Many nodes at once: the exact best over a random induced forest, all other nodes staying where they are.

Dynamic programming over induced trees is the tree-block move of Hamze and de Freitas (2004, UAI) taken to its minimum.
Memory enters through prices, so a move may break a limit; the caller repairs or refuses it.
"""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.packed_arrays import Flat

BIG = 1e300


@compiled
def region_of(flat: Flat, most: int, seed: int) -> IntArray:
    """At most `most` nodes around a random one, by breadth; all nodes in random order if `most` is not less."""
    nodes = flat.first.size - 1
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
        for k in range(flat.link_at[i], flat.link_at[i + 1]):
            e = flat.links[k]
            j = flat.tail[e] + flat.head[e] - i
            if not seen[j] and filled < most:
                seen[j] = True
                queue[filled] = j
                filled += 1
    chosen = queue[:filled]
    np.random.shuffle(chosen)
    return chosen


@compiled
def improve_forest(flat: Flat, costs: FloatArray, picks: IntArray, candidates: IntArray) -> None:
    """Moves `picks` to the best over a forest that the graph induces among `candidates`, taken greedily in order."""
    nodes = picks.size
    inside = np.zeros(nodes, np.bool_)
    leader = np.arange(nodes)
    roots = np.empty(nodes, np.int64)
    for i in candidates:
        count = 0
        joins = True
        for k in range(flat.link_at[i], flat.link_at[i + 1]):
            e = flat.links[k]
            j = flat.tail[e] + flat.head[e] - i
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
    order = np.empty(candidates.size, np.int64)
    parent = np.full(nodes, -1)
    filled = 0
    read = 0
    seen = np.zeros(nodes, np.bool_)
    for seed in candidates:
        if not inside[seed] or seen[seed]:
            continue
        seen[seed] = True
        order[filled] = seed
        filled += 1
        while read < filled:
            i = order[read]
            read += 1
            for k in range(flat.link_at[i], flat.link_at[i + 1]):
                e = flat.links[k]
                j = flat.tail[e] + flat.head[e] - i
                if inside[j] and not seen[j]:
                    seen[j] = True
                    parent[j] = e
                    order[filled] = j
                    filled += 1
    at = np.empty(filled + 1, np.int64)
    place = np.full(nodes, -1)
    at[0] = 0
    for k in range(filled):
        i = order[k]
        place[i] = k
        at[k + 1] = at[k] + flat.first[i + 1] - flat.first[i]
    value = np.empty(at[filled])
    for k in range(filled):
        i = order[k]
        begin = flat.first[i]
        size = flat.first[i + 1] - begin
        mine = value[at[k] : at[k + 1]]
        for c in range(size):
            mine[c] = costs[begin + c]
        for q in range(flat.link_at[i], flat.link_at[i + 1]):
            e = flat.links[q]
            j = flat.tail[e] + flat.head[e] - i
            if inside[j]:
                continue
            columns = flat.head_at[e + 1] - flat.head_at[e]
            if flat.head[e] == i:
                start = flat.at[e] + picks[j] * columns
                for c in range(size):
                    mine[c] += flat.table[start + c]
            else:
                start = flat.at[e] + picks[j]
                for c in range(size):
                    mine[c] += flat.table[start + c * columns]
    for k in range(filled - 1, -1, -1):
        i = order[k]
        e = parent[i]
        if e < 0:
            continue
        j = flat.tail[e] + flat.head[e] - i
        mine = value[at[k] : at[k + 1]]
        above = value[at[place[j]] : at[place[j] + 1]]
        columns = flat.head_at[e + 1] - flat.head_at[e]
        for c in range(above.size):
            least = BIG
            if flat.head[e] == i:
                start = flat.at[e] + c * columns
                for d in range(mine.size):
                    least = min(least, flat.table[start + d] + mine[d])
            else:
                start = flat.at[e] + c
                for d in range(mine.size):
                    least = min(least, flat.table[start + d * columns] + mine[d])
            above[c] += least
    for k in range(filled):
        i = order[k]
        e = parent[i]
        mine = value[at[k] : at[k + 1]]
        best = 0
        least = BIG
        for c in range(mine.size):
            total = mine[c]
            if e >= 0:
                j = flat.tail[e] + flat.head[e] - i
                columns = flat.head_at[e + 1] - flat.head_at[e]
                if flat.head[e] == i:
                    total += flat.table[flat.at[e] + picks[j] * columns + c]
                else:
                    total += flat.table[flat.at[e] + c * columns + picks[j]]
            if total < least:
                least = total
                best = c
        picks[i] = best
