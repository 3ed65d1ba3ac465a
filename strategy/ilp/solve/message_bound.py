"""Message bound: what prices and TRW-S messages prove, certified in exact integers.

Shapes, as in `packed_arrays` and `packed_joins`: N nodes, C choices in all, E edges, R memory rows, J joins, M messages
of joins; `units` (R,) are prices in units of 2^-shift, `tails`, `heads` and `lines` (M,) the messages to tails, heads
and lines of joins in units of 2^-bits, all int64.
"""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.certificate.proof import MessageBound, Prices
from strategy.ilp.problem import FORBIDDEN
from strategy.ilp.solve.certified_bound import (
    INFINITE,
    LARGEST,
    CertifiedBound,
    bound_of_total,
    fixed_point_scales,
    room_credit,
)
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.dual_ascent import DualAscent
from strategy.ilp.solve.packed_arrays import PackedArrays
from strategy.ilp.solve.packed_joins import PackedJoins
from strategy.ilp.solve.relaxation import Relaxation
from strategy.ilp.solve.trws import TrwsMessages


def certify_messages(relaxation: Relaxation, ascent: DualAscent) -> CertifiedBound:
    """What follows from the best prices and messages of an ascent over the relaxed arrays of `relaxation`."""
    relaxed = relaxation.relaxed
    arrays, nodes, constant = relaxation.exact, relaxed.nodes, relaxed.core.constant
    prices = ascent.best_prices
    total, priced = _magnitudes(arrays, prices, ascent.best_messages)
    part = LARGEST / total if total > LARGEST else 1.0
    bits, shift = fixed_point_scales(part * total, part * priced)
    units = np.rint(prices * part * 2.0**shift).astype(np.int64)
    tails, heads, lines = (np.rint(messages * part * 2.0**bits).astype(np.int64) for messages in ascent.best_messages)
    entry, edges = _entries(arrays, units, tails, heads, lines, bits, shift)
    joined = _least_of_joins(arrays.joins, lines, bits)
    exact = Prices(units, shift, bits)
    credit = room_credit(units, arrays.room, constant, shift)
    floor = np.minimum.reduceat(entry, arrays.choice_at[:-1]) if entry.size else entry
    least = int(floor.sum()) + int(edges.sum()) + int(joined.sum())
    reached = np.where(entry >= INFINITE, INFINITE, entry + np.repeat(least - floor, np.diff(arrays.choice_at)))
    by_choice = {node: reached[arrays.choice_at[i] : arrays.choice_at[i + 1]] for i, node in enumerate(nodes)}
    gone = np.array(sorted(node for join in relaxation.joins for node in join.nodes), np.int64)
    proof = MessageBound(
        exact, np.concatenate((_ordered(arrays, nodes, tails, heads), _along(arrays.joins, lines))), gone
    )
    return CertifiedBound(proof, bound_of_total(least, credit, exact), by_choice, credit)


def _magnitudes(arrays: PackedArrays, prices: FloatArray, messages: TrwsMessages) -> tuple[float, float]:
    """The largest sum of costs, prices and messages, and of a node's priced bytes."""
    to_tail, to_head, to_lines = messages
    before = np.concatenate(([0.0], np.cumsum(prices)))
    costs = np.where(arrays.cost < FORBIDDEN, np.abs(arrays.cost), 0)
    total = float(_largest(costs, arrays.choice_at[:-1]).sum())
    dear = np.zeros(0)
    if arrays.span_start.size:
        held = (before[arrays.span_last] - before[arrays.span_first]) * _largest(arrays.amount, arrays.span_start)
        sums = np.concatenate(([0.0], np.cumsum(held)))
        dear = sums[arrays.span_at[1:]] - sums[arrays.span_at[:-1]]
        total += float(dear.sum())
    if arrays.tail.size:
        given = (
            _largest(np.abs(to_tail), arrays.tail_at[:-1]).sum() + _largest(np.abs(to_head), arrays.head_at[:-1]).sum()
        )
        cells = np.where(arrays.table < FORBIDDEN, np.abs(arrays.table), 0)
        total += 2 * float(given) + float(_largest(cells, arrays.table_at[:-1]).sum())
    joins = arrays.joins
    if joins.table_at.size:
        starts = np.unique(joins.table_at)
        cells = np.where(joins.table < FORBIDDEN, joins.table, 0)
        largest = _largest(cells, starts)[np.searchsorted(starts, joins.table_at)]
        axes = np.sort(joins.message_at[joins.message_at > 0])
        total += 2 * float(_largest(np.abs(to_lines), axes).sum()) + float(largest.sum())
    return total, max(float(dear.max(initial=0.0)), float(before[-1]))


def _largest(values: IntArray | FloatArray, starts: IntArray) -> FloatArray:
    """The largest of every piece of `values` that begins at one of `starts`, as float64."""
    return np.maximum.reduceat(values, starts).astype(np.float64) if values.size else np.zeros(0)


def _ordered(arrays: PackedArrays, nodes: tuple[int, ...], tails: IntArray, heads: IntArray) -> IntArray:
    """Messages along `Core.pairs`: by ascending ids, those of the smaller id first."""
    ids = np.array(nodes, np.int64)
    ones, others = ids[arrays.tail], ids[arrays.head]
    turned = (ones > others).tolist()
    parts: list[IntArray] = []
    for e in np.lexsort((np.maximum(ones, others), np.minimum(ones, others))).tolist():
        pair = tails[arrays.tail_at[e] : arrays.tail_at[e + 1]], heads[arrays.head_at[e] : arrays.head_at[e + 1]]
        parts.extend(pair[::-1] if turned[e] else pair)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _along(joins: PackedJoins, lines: IntArray) -> IntArray:
    """Messages to the choices of the joins' nodes, join by join: those of its lines."""
    sizes = np.diff(np.concatenate((joins.class_at[joins.member >= 0], [joins.classes.size])))
    return lines[joins.classes + np.repeat(joins.message_at[joins.member >= 0], sizes)]


@compiled
def _least_of_joins(joins: PackedJoins, lines: IntArray, bits: int) -> IntArray:
    """Every join's least entry without its messages, (J,) int64."""
    least = np.empty(joins.table_at.size, np.int64)
    for j in range(joins.table_at.size):
        shape, message = joins.num_lines[j], joins.message_at[j]
        lowest = INFINITE
        at = joins.table_at[j]
        for a in range(shape[0]):
            for b in range(shape[1]):
                for c in range(shape[2]):
                    given = lines[message[0] + a] + lines[message[1] + b] + lines[message[2] + c]
                    for d in range(shape[3]):
                        cell = joins.table[at]
                        at += 1
                        if cell < FORBIDDEN:
                            lowest = min(lowest, (cell << bits) - given - lines[message[3] + d])
        least[j] = lowest
    return least


@compiled
def _entries(
    arrays: PackedArrays, units: IntArray, tails: IntArray, heads: IntArray, lines: IntArray, bits: int, shift: int
) -> tuple[IntArray, IntArray]:
    """Every choice's cost, price and messages, (C,); every table's least entry without its messages, (E,); int64."""
    joins = arrays.joins
    entry = np.empty(arrays.cost.size, np.int64)
    before = np.zeros(units.size + 1, np.int64)
    for row in range(units.size):
        before[row + 1] = before[row] + units[row]
    for i in range(arrays.choice_at.size - 1):
        begin = arrays.choice_at[i]
        for c in range(begin, arrays.choice_at[i + 1]):
            entry[c] = 0
        for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
            weight = before[arrays.span_last[s]] - before[arrays.span_first[s]]
            for c in range(arrays.choice_at[i + 1] - begin):
                entry[begin + c] += weight * arrays.amount[arrays.span_start[s] + c]
        for c in range(begin, arrays.choice_at[i + 1]):
            if arrays.cost[c] >= FORBIDDEN:
                entry[c] = INFINITE
            else:
                entry[c] = (entry[c] >> (shift - bits)) + (arrays.cost[c] << bits)
    least = np.empty(arrays.tail.size, np.int64)
    for e in range(arrays.tail.size):
        columns = arrays.head_at[e + 1] - arrays.head_at[e]
        lowest = INFINITE
        for a in range(arrays.tail_at[e + 1] - arrays.tail_at[e]):
            mine = tails[arrays.tail_at[e] + a]
            for b in range(columns):
                cell = arrays.table[arrays.table_at[e] + a * columns + b]
                if cell < FORBIDDEN:
                    lowest = min(lowest, (cell << bits) - mine - heads[arrays.head_at[e] + b])
        least[e] = lowest
        for k in range(arrays.tail_at[e + 1] - arrays.tail_at[e]):
            c = arrays.choice_at[arrays.tail[e]] + k
            if entry[c] < INFINITE:
                entry[c] += tails[arrays.tail_at[e] + k]
        for k in range(columns):
            c = arrays.choice_at[arrays.head[e]] + k
            if entry[c] < INFINITE:
                entry[c] += heads[arrays.head_at[e] + k]
    for i in range(arrays.choice_at.size - 1):
        begin = arrays.choice_at[i]
        for k in range(joins.link_at[i], joins.link_at[i + 1]):
            j, axis = joins.link_join[k], joins.link_axis[k]
            for c in range(arrays.choice_at[i + 1] - begin):
                if entry[begin + c] < INFINITE:
                    entry[begin + c] += lines[joins.message_at[j, axis] + joins.classes[joins.class_at[j, axis] + c]]
    return entry, least
