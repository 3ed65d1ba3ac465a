"""A bound without elimination: costs move between nodes and tables until every table sees its part of them.

Sequential tree-reweighted message passing (Kolmogorov 2006, IEEE TPAMI 28; in the form of Kolmogorov 2015, IEEE TPAMI
37). Nodes are visited in order and back; each takes what its tables to nodes visited before cannot avoid, and gives
its tables to nodes visited later equal shares of what it has. Whatever the messages m and the prices lambda of memory:

    sum_i min_c (cost_i + lambda * amounts_i + m_i)(c) + sum_e min (table_e - m_tail - m_head) - lambda * room

(with joins among the tables) bounds every legal choice from below. Floats find messages and prices; `passed` states
what follows from them, rounded, in exact integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.packed_arrays import Flat
from strategy.ilp.solve.packed_joins import AXES, BIG, line_in, marginal


class Messages(NamedTuple):
    """What edges' tails, their heads and the lines of joins take over from the tables."""

    to_tail: FloatArray
    to_head: FloatArray
    to_lines: FloatArray

    def copy(self) -> Messages:
        """Independent arrays."""
        return Messages(self.to_tail.copy(), self.to_head.copy(), self.to_lines.copy())


def no_messages(flat: Flat) -> Messages:
    """Messages that say nothing."""
    return Messages(np.zeros(flat.tail_at[-1]), np.zeros(flat.head_at[-1]), np.zeros(flat.joins.messages))


@compiled
def assign(messages: Messages, others: Messages) -> None:
    """Overwrites messages by others."""
    messages.to_tail[:] = others.to_tail
    messages.to_head[:] = others.to_head
    messages.to_lines[:] = others.to_lines


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
def sweep(flat: Flat, priced: FloatArray, messages: Messages, forward: bool, picks: IntArray) -> float:
    """Passes messages once through all nodes, in order or back, and decodes a choice on the way.

    Args:
        flat: the working copy; every choice must have a legal partner across each edge.
        priced: node costs with memory priced.
        messages: rewritten.
        forward: the direction.
        picks: takes the choice of every node: the cheapest beside those of the nodes visited before.

    Returns:
        The bound, without the credit for the rows' room.
    """
    to_tail, to_head, to_lines = messages.to_tail, messages.to_head, messages.to_lines
    nodes = flat.first.size - 1
    total = 0.0
    widest = 0
    for i in range(nodes):
        widest = max(widest, flat.first[i + 1] - flat.first[i])
    own = np.empty(widest)
    beside = np.empty(widest)
    visited = np.zeros(nodes, np.bool_)
    buffer = np.empty(max(widest, 1))
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
        earlier_joins, later_joins = _take(flat, i, to_lines, forward, own, buffer)
        earlier += earlier_joins
        later += later_joins
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
        _see(flat, i, to_lines, forward, picks, visited, beside, buffer)
        best = 0
        for c in range(1, size):
            if beside[c] < beside[best]:
                best = c
        picks[i] = best
        visited[i] = True
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
            _give(flat, i, to_lines, forward, own, least, share, buffer)
    return total


@compiled
def _take(
    flat: Flat, i: int, to_lines: FloatArray, forward: bool, own: FloatArray, line: FloatArray
) -> tuple[int, int]:
    """Adds what joins give a node to `own`; returns how many of them have a node before it, and after it."""
    joins = flat.joins
    earlier, later = 0, 0
    for k in range(joins.link_at[i], joins.link_at[i + 1]):
        j, axis = joins.link_join[k], joins.link_axis[k]
        at, of = joins.message[j, axis], joins.class_at[j, axis]
        if not (joins.ends[k] if forward else joins.begins[k]):
            later += 1
        if not (joins.begins[k] if forward else joins.ends[k]):
            earlier += 1
            marginal(joins, j, axis, to_lines, np.full(AXES, -1), line)
            for c in range(joins.lines[j, axis]):
                to_lines[at + c] = line[c]
        for c in range(flat.first[i + 1] - flat.first[i]):
            own[c] += to_lines[at + joins.classes[of + c]]
    return earlier, later


@compiled
def _see(
    flat: Flat,
    i: int,
    to_lines: FloatArray,
    forward: bool,
    picks: IntArray,
    visited: npt.NDArray[np.bool_],
    beside: FloatArray,
    line: FloatArray,
) -> None:
    """Adds what joins still cost beside the picks of the nodes visited before."""
    joins = flat.joins
    taken = np.empty(AXES, np.int64)
    for k in range(joins.link_at[i], joins.link_at[i + 1]):
        if joins.begins[k] if forward else joins.ends[k]:
            continue
        j, axis = joins.link_join[k], joins.link_axis[k]
        for x in range(AXES):
            node = joins.member[j, x]
            taken[x] = line_in(joins, j, x, picks) if node >= 0 and visited[node] else -1
        marginal(joins, j, axis, to_lines, taken, line)
        for c in range(flat.first[i + 1] - flat.first[i]):
            of = joins.classes[joins.class_at[j, axis] + c]
            beside[c] += line[of] - to_lines[joins.message[j, axis] + of]


@compiled
def _give(
    flat: Flat,
    i: int,
    to_lines: FloatArray,
    forward: bool,
    own: FloatArray,
    least: float,
    share: float,
    line: FloatArray,
) -> None:
    """Gives a share of what a node has to the joins with a node visited later: a line is owed its least choice."""
    joins = flat.joins
    for k in range(joins.link_at[i], joins.link_at[i + 1]):
        if joins.ends[k] if forward else joins.begins[k]:
            continue
        j, axis = joins.link_join[k], joins.link_axis[k]
        of = joins.class_at[j, axis]
        line[: joins.lines[j, axis]] = BIG
        for c in range(flat.first[i + 1] - flat.first[i]):
            x = joins.classes[of + c]
            line[x] = min(line[x], own[c])
        for x in range(joins.lines[j, axis]):
            to_lines[joins.message[j, axis] + x] -= share * (line[x] - least)
