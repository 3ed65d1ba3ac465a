"""TRW-S messages: a bound without elimination, by moving costs between nodes and tables until they agree.

Sequential tree-reweighted message passing (Kolmogorov 2006, IEEE TPAMI 28; in the form of Kolmogorov 2015, IEEE TPAMI
37). Nodes are visited in order and back; each takes what its tables to nodes visited before cannot avoid, and gives
its tables to nodes visited later equal shares of what it has. Whatever the messages m and the prices lambda of memory:

    sum_i min_c (cost_i + lambda * amounts_i + m_i)(c) + sum_e min (table_e - m_tail - m_head) - lambda * room

(with joins among the tables) bounds every legal choice from below. Floats find messages and prices; `message_bound`
certifies what follows from them, rounded, in exact integers.

Shapes, as in `packed_arrays` and `packed_joins`: N nodes, C choices in all, C_i of node i, R memory rows, W = max C_i,
M messages of joins. Costs, prices and messages are float64, picks int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import compiled, in_place
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.packed_arrays import PackedArrays
from strategy.ilp.solve.packed_joins import AXES, BIG, line_of_pick, min_marginal


class TrwsMessages(NamedTuple):
    """What the choices of edges' tails and heads, and the lines of joins, take over from the tables."""

    to_tail: FloatArray  # (sum of C_tail over edges,), from `PackedArrays.tail_at`
    to_head: FloatArray  # (sum of C_head over edges,), from `PackedArrays.head_at`
    to_lines: FloatArray  # (M,), from `PackedJoins.message_at`

    def copy(self) -> TrwsMessages:
        """Independent arrays."""
        return TrwsMessages(self.to_tail.copy(), self.to_head.copy(), self.to_lines.copy())


class SweepWork(NamedTuple):
    """Arrays that a sweep works in; what is in them before does not matter."""

    own: FloatArray  # (W,) cost, price and messages of a node's choices
    beside: FloatArray  # (W,) the same, with tables to nodes visited before at their picks
    line: FloatArray  # (W,) of a join
    visited: npt.NDArray[np.bool_]  # (N,)
    taken: IntArray  # (AXES,) of a join, lines that are picked
    whole: IntArray  # (AXES,) that none is: -1


@compiled
def sweep_work(arrays: PackedArrays) -> SweepWork:
    """Arrays for sweeps of these."""
    nodes = arrays.choice_at.size - 1
    widest = 1
    for i in range(nodes):
        widest = max(widest, arrays.choice_at[i + 1] - arrays.choice_at[i])
    return SweepWork(
        np.empty(widest), np.empty(widest), np.empty(widest), np.empty(nodes, np.bool_), np.empty(AXES, np.int64),
        np.full(AXES, -1),
    )  # fmt: skip


def zero_messages(arrays: PackedArrays) -> TrwsMessages:
    """Messages of zero."""
    return TrwsMessages(np.zeros(arrays.tail_at[-1]), np.zeros(arrays.head_at[-1]), np.zeros(arrays.joins.num_messages))


@compiled
def overwrite_messages(messages: TrwsMessages, others: TrwsMessages) -> None:
    """Overwrites messages by others of the same shapes."""
    messages.to_tail[:] = others.to_tail
    messages.to_head[:] = others.to_head
    messages.to_lines[:] = others.to_lines


@compiled
def price_memory(arrays: PackedArrays, prices: FloatArray, priced: FloatArray) -> None:
    """Writes costs plus the price of memory into `priced` (C,), at `prices` (R,) of a byte in every row."""
    before = np.zeros(prices.size + 1, prices.dtype)
    for row in range(prices.size):
        before[row + 1] = before[row] + prices[row]
    priced[:] = arrays.cost
    for i in range(arrays.choice_at.size - 1):
        begin = arrays.choice_at[i]
        size = arrays.choice_at[i + 1] - begin
        for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
            rate = before[arrays.span_last[s]] - before[arrays.span_first[s]]
            if rate != 0:
                start = arrays.span_start[s]
                for c in range(size):
                    priced[begin + c] += rate * arrays.amount[start + c]


@in_place
def trws_sweep(
    arrays: PackedArrays, priced: FloatArray, messages: TrwsMessages, forward: bool, picks: IntArray, work: SweepWork
) -> float:
    """One TRW-S sweep: passes messages through all nodes, in order or back, and decodes a choice on the way.

    Args:
        arrays: the working copy; every choice must have a legal partner across each edge.
        priced: (C,), costs with memory priced.
        messages: rewritten.
        forward: the direction.
        picks: (N,), takes the choice of every node: the cheapest beside those of the nodes visited before.
        work: rewritten.

    Returns:
        The bound, without the credit for the rows' room.
    """
    own, beside = work.own, work.beside
    nodes = arrays.choice_at.size - 1
    total = 0.0
    for i in range(nodes):
        work.visited[i] = False
    for step in range(nodes):
        i = step if forward else nodes - 1 - step
        begin = arrays.choice_at[i]
        size = arrays.choice_at[i + 1] - begin
        for c in range(size):
            own[c] = priced[begin + c]
        earlier, later = _receive_from_edges(arrays, i, messages, forward, own, size)
        earlier_joins, later_joins = _receive_from_joins(arrays, i, messages.to_lines, forward, size, work)
        earlier += earlier_joins
        later += later_joins
        least = own[0]
        for c in range(1, size):
            least = min(least, own[c])
        total += least
        for c in range(size):
            beside[c] = own[c]
        _condition_on_picks(arrays, i, messages, forward, picks, beside, size)
        _condition_on_visited(arrays, i, messages.to_lines, forward, picks, size, work)
        best = 0
        for c in range(1, size):
            if beside[c] < beside[best]:
                best = c
        picks[i] = best
        work.visited[i] = True
        if later:
            share = 1.0 / max(later, earlier)
            _send_along_edges(arrays, i, messages, forward, own, size, least, share)
            _send_to_joins(arrays, i, messages.to_lines, forward, size, least, share, work)
    return total


@in_place
def _receive_from_edges(
    arrays: PackedArrays, i: int, messages: TrwsMessages, forward: bool, own: FloatArray, size: int
) -> tuple[int, int]:
    """Renews the messages to node i of those visited before, and adds all its messages to `own` (W,), of its choices.

    Returns how many edges lead to nodes before it, and after it.
    """
    to_tail, to_head, table = messages.to_tail, messages.to_head, arrays.table
    earlier, later = 0, 0
    for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
        e = arrays.links[k]
        as_head = arrays.head[e] == i
        tails, heads = arrays.tail_at[e], arrays.head_at[e]
        if as_head == forward:
            earlier += 1
            rows, columns = arrays.tail_at[e + 1] - tails, arrays.head_at[e + 1] - heads
            at = arrays.table_at[e]
            if as_head:
                for b in range(columns):
                    to_head[heads + b] = BIG
                for a in range(rows):
                    given = to_tail[tails + a]
                    for b in range(columns):
                        to_head[heads + b] = min(to_head[heads + b], table[at + b] - given)
                    at += columns
            else:
                for a in range(rows):
                    least = BIG
                    for b in range(columns):
                        least = min(least, table[at + b] - to_head[heads + b])
                    to_tail[tails + a] = least
                    at += columns
        else:
            later += 1
        if as_head:
            for c in range(size):
                own[c] += to_head[heads + c]
        else:
            for c in range(size):
                own[c] += to_tail[tails + c]
    return earlier, later


@in_place
def _condition_on_picks(
    arrays: PackedArrays,
    i: int,
    messages: TrwsMessages,
    forward: bool,
    picks: IntArray,
    beside: FloatArray,
    size: int,
) -> None:
    """Puts into `beside` (W,), in place of messages to node i, the tables to those visited before, at their picks."""
    to_tail, to_head = messages.to_tail, messages.to_head
    for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
        e = arrays.links[k]
        as_head = arrays.head[e] == i
        if as_head != forward:
            continue
        columns = arrays.head_at[e + 1] - arrays.head_at[e]
        if as_head:
            a = picks[arrays.tail[e]]
            start = arrays.table_at[e] + a * columns
            given = to_tail[arrays.tail_at[e] + a]
            for c in range(size):
                beside[c] += arrays.table[start + c] - given - to_head[arrays.head_at[e] + c]
        else:
            b = picks[arrays.head[e]]
            start = arrays.table_at[e] + b
            given = to_head[arrays.head_at[e] + b]
            for c in range(size):
                beside[c] += arrays.table[start + c * columns] - given - to_tail[arrays.tail_at[e] + c]


@in_place
def _send_along_edges(
    arrays: PackedArrays,
    i: int,
    messages: TrwsMessages,
    forward: bool,
    own: FloatArray,
    size: int,
    least: float,
    share: float,
) -> None:
    """Takes from node i, on each edge to a node after it, its share of what choices cost over the least."""
    to_tail, to_head = messages.to_tail, messages.to_head
    for k in range(arrays.link_at[i], arrays.link_at[i + 1]):
        e = arrays.links[k]
        as_head = arrays.head[e] == i
        if as_head == forward:
            continue
        if as_head:
            for c in range(size):
                to_head[arrays.head_at[e] + c] -= share * (own[c] - least)
        else:
            for c in range(size):
                to_tail[arrays.tail_at[e] + c] -= share * (own[c] - least)


@in_place
def _receive_from_joins(
    arrays: PackedArrays, i: int, to_lines: FloatArray, forward: bool, size: int, work: SweepWork
) -> tuple[int, int]:
    """Adds what joins give node i to `work.own`; returns how many of them have a node before it, and after it.

    `to_lines` (M,) is rewritten.
    """
    joins, line = arrays.joins, work.line
    earlier, later = 0, 0
    for k in range(joins.link_at[i], joins.link_at[i + 1]):
        j, axis = joins.link_join[k], joins.link_axis[k]
        at, of = joins.message_at[j, axis], joins.class_at[j, axis]
        if not (joins.is_last[k] if forward else joins.is_first[k]):
            later += 1
        if not (joins.is_first[k] if forward else joins.is_last[k]):
            earlier += 1
            min_marginal(joins, j, axis, to_lines, work.whole, line)
            for c in range(joins.num_lines[j, axis]):
                to_lines[at + c] = line[c]
        for c in range(size):
            work.own[c] += to_lines[at + joins.classes[of + c]]
    return earlier, later


@in_place
def _condition_on_visited(
    arrays: PackedArrays, i: int, to_lines: FloatArray, forward: bool, picks: IntArray, size: int, work: SweepWork
) -> None:
    """Adds to `work.beside` what joins still cost at the `picks` (N,) of the nodes that are visited."""
    joins, line, taken = arrays.joins, work.line, work.taken
    for k in range(joins.link_at[i], joins.link_at[i + 1]):
        if joins.is_first[k] if forward else joins.is_last[k]:
            continue
        j, axis = joins.link_join[k], joins.link_axis[k]
        for x in range(AXES):
            node = joins.member[j, x]
            taken[x] = line_of_pick(joins, j, x, picks) if node >= 0 and work.visited[node] else -1
        min_marginal(joins, j, axis, to_lines, taken, line)
        for c in range(size):
            of = joins.classes[joins.class_at[j, axis] + c]
            work.beside[c] += line[of] - to_lines[joins.message_at[j, axis] + of]


@in_place
def _send_to_joins(
    arrays: PackedArrays,
    i: int,
    to_lines: FloatArray,
    forward: bool,
    size: int,
    least: float,
    share: float,
    work: SweepWork,
) -> None:
    """Gives a share of what node i has, `work.own` above `least`, to the joins with a node visited later.

    A line is owed its least choice. `to_lines` (M,) is rewritten.
    """
    joins, line = arrays.joins, work.line
    for k in range(joins.link_at[i], joins.link_at[i + 1]):
        if joins.is_last[k] if forward else joins.is_first[k]:
            continue
        j, axis = joins.link_join[k], joins.link_axis[k]
        of = joins.class_at[j, axis]
        for x in range(joins.num_lines[j, axis]):
            line[x] = BIG
        for c in range(size):
            x = joins.classes[of + c]
            line[x] = min(line[x], work.own[c])
        for x in range(joins.num_lines[j, axis]):
            to_lines[joins.message_at[j, axis] + x] -= share * (line[x] - least)
