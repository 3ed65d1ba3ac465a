"""A bound without elimination: costs move between nodes and tables until every table sees its part of them.

Sequential tree-reweighted message passing (Kolmogorov 2006, IEEE TPAMI 28; in the form of Kolmogorov 2015, IEEE TPAMI
37). Nodes are visited in order and back; each takes what its tables to nodes visited before cannot avoid, and gives
its tables to nodes visited later equal shares of what it has. Whatever the messages m and the prices lambda of memory:

    sum_i min_c (cost_i + lambda * amounts_i + m_i)(c) + sum_e min (table_e - m_tail - m_head) - lambda * room

bounds every legal choice from below. Floats find messages and prices; `passed` states what follows from them, rounded,
in exact integers.
"""

from __future__ import annotations

import numpy as np

from strategy.compiled import compiled
from strategy.solve.core import IntArray
from strategy.solve.flat import Flat, FloatArray

# Above every sum, forbidden ones included.
BIG = 1e300


@compiled
def price(flat: Flat, prices: FloatArray, priced: FloatArray) -> None:
    """Writes node costs with the price of their memory into `priced`."""
    before = np.zeros(prices.size + 1, prices.dtype)
    for row in range(prices.size):
        before[row + 1] = before[row] + prices[row]
    priced[:] = flat.cost
    for i in range(flat.first.size - 1):
        begin = flat.first[i]
        size = flat.first[i + 1] - begin
        for s in range(flat.span_at[i], flat.span_at[i + 1]):
            rate = before[flat.span_last[s]] - before[flat.span_first[s]]
            if rate != 0:
                start = flat.span_start[s]
                for c in range(size):
                    priced[begin + c] += rate * flat.amount[start + c]


@compiled
def sweep(
    flat: Flat, priced: FloatArray, to_tail: FloatArray, to_head: FloatArray, forward: bool, picks: IntArray
) -> float:
    """Passes messages once through all nodes, in order or back, and decodes a choice on the way.

    Args:
        flat: the working copy; every choice must have a legal partner across each edge.
        priced: node costs with memory priced.
        to_tail: messages to the edges' tails, rewritten.
        to_head: and to their heads.
        forward: the direction.
        picks: takes the choice of every node: the cheapest beside those of the nodes visited before.

    Returns:
        The bound, without the credit for the rows' room.
    """
    nodes = flat.first.size - 1
    total = 0.0
    widest = 0
    for i in range(nodes):
        widest = max(widest, flat.first[i + 1] - flat.first[i])
    own = np.empty(widest)
    beside = np.empty(widest)
    for step in range(nodes):
        i = step if forward else nodes - 1 - step
        begin = flat.first[i]
        size = flat.first[i + 1] - begin
        for c in range(size):
            own[c] = priced[begin + c]
        later = 0
        earlier = 0
        for k in range(flat.link_at[i], flat.link_at[i + 1]):
            e = flat.links[k]
            as_head = flat.head[e] == i
            if as_head == forward:
                earlier += 1
                rows = flat.tail_at[e + 1] - flat.tail_at[e]
                columns = flat.head_at[e + 1] - flat.head_at[e]
                if as_head:
                    into = to_head[flat.head_at[e] : flat.head_at[e] + columns]
                    into[:] = BIG
                    for a in range(rows):
                        given = to_tail[flat.tail_at[e] + a]
                        line = flat.table[flat.at[e] + a * columns : flat.at[e] + (a + 1) * columns]
                        for b in range(columns):
                            into[b] = min(into[b], line[b] - given)
                else:
                    other = to_head[flat.head_at[e] : flat.head_at[e] + columns]
                    for a in range(rows):
                        line = flat.table[flat.at[e] + a * columns : flat.at[e] + (a + 1) * columns]
                        least = BIG
                        for b in range(columns):
                            least = min(least, line[b] - other[b])
                        to_tail[flat.tail_at[e] + a] = least
            else:
                later += 1
            if as_head:
                for c in range(size):
                    own[c] += to_head[flat.head_at[e] + c]
            else:
                for c in range(size):
                    own[c] += to_tail[flat.tail_at[e] + c]
        least = own[0]
        for c in range(1, size):
            least = min(least, own[c])
        total += least
        for c in range(size):
            beside[c] = own[c]
        for k in range(flat.link_at[i], flat.link_at[i + 1]):
            e = flat.links[k]
            as_head = flat.head[e] == i
            if as_head != forward:
                continue
            columns = flat.head_at[e + 1] - flat.head_at[e]
            if as_head:
                a = picks[flat.tail[e]]
                start = flat.at[e] + a * columns
                given = to_tail[flat.tail_at[e] + a]
                for c in range(size):
                    beside[c] += flat.table[start + c] - given - to_head[flat.head_at[e] + c]
            else:
                b = picks[flat.head[e]]
                start = flat.at[e] + b
                given = to_head[flat.head_at[e] + b]
                for c in range(size):
                    beside[c] += flat.table[start + c * columns] - given - to_tail[flat.tail_at[e] + c]
        best = 0
        for c in range(1, size):
            if beside[c] < beside[best]:
                best = c
        picks[i] = best
        if later:
            share = 1.0 / max(later, earlier)
            for k in range(flat.link_at[i], flat.link_at[i + 1]):
                e = flat.links[k]
                as_head = flat.head[e] == i
                if as_head == forward:
                    continue
                if as_head:
                    for c in range(size):
                        to_head[flat.head_at[e] + c] -= share * (own[c] - least)
                else:
                    for c in range(size):
                        to_tail[flat.tail_at[e] + c] -= share * (own[c] - least)
    return total
