"""The bound of prices and messages, stated in exact integers."""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.certificate.proof import Passed, Prices
from strategy.ilp.problem import FORBIDDEN
from strategy.ilp.solve.certified_bound import INFINITE, LARGEST, Stated, credit_of, proved, scales
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.dual_ascent import Ascent
from strategy.ilp.solve.packed_arrays import Flat
from strategy.ilp.solve.packed_joins import FlatJoins
from strategy.ilp.solve.relaxation import Relaxation
from strategy.ilp.solve.trws import Messages


def state_messages(place: Relaxation, ascent: Ascent) -> Stated:
    """What follows from the best prices and messages of an ascent over the inner arrays of `place`."""
    flat, nodes, constant = place.exact, place.inner.nodes, place.inner.core.constant
    prices = ascent.best_prices
    total, priced = _magnitudes(flat, prices, ascent.best_messages)
    part = LARGEST / total if total > LARGEST else 1.0
    bits, shift = scales(part * total, part * priced)
    units = np.rint(prices * part * 2.0**shift).astype(np.int64)
    tails, heads, lines = (np.rint(messages * part * 2.0**bits).astype(np.int64) for messages in ascent.best_messages)
    entry, edges = _entries(flat, units, tails, heads, lines, bits, shift)
    joined = _least_of_joins(flat.joins, lines, bits)
    exact = Prices(units, shift, bits)
    credit = credit_of(units, flat.room, constant, shift)
    floor = np.minimum.reduceat(entry, flat.first[:-1]) if entry.size else entry
    least = int(floor.sum()) + int(edges.sum()) + int(joined.sum())
    reached = np.where(entry >= INFINITE, INFINITE, entry + np.repeat(least - floor, np.diff(flat.first)))
    by_choice = {node: reached[flat.first[i] : flat.first[i + 1]] for i, node in enumerate(nodes)}
    gone = np.array(sorted(node for join in place.joins for node in join.nodes), np.int64)
    proof = Passed(exact, np.concatenate((_ordered(flat, nodes, tails, heads), _along(flat.joins, lines))), gone)
    return Stated(proof, proved(least, credit, exact), by_choice, credit)


def _magnitudes(flat: Flat, prices: FloatArray, messages: Messages) -> tuple[float, float]:
    """The largest sum of costs, prices and messages, and of a node's priced bytes."""
    to_tail, to_head, to_lines = messages
    before = np.concatenate(([0.0], np.cumsum(prices)))
    costs = np.where(flat.cost < FORBIDDEN, np.abs(flat.cost), 0)
    total = float(_largest(costs, flat.first[:-1]).sum())
    dear = np.zeros(0)
    if flat.span_start.size:
        held = (before[flat.span_last] - before[flat.span_first]) * _largest(flat.amount, flat.span_start)
        sums = np.concatenate(([0.0], np.cumsum(held)))
        dear = sums[flat.span_at[1:]] - sums[flat.span_at[:-1]]
        total += float(dear.sum())
    if flat.tail.size:
        given = _largest(np.abs(to_tail), flat.tail_at[:-1]).sum() + _largest(np.abs(to_head), flat.head_at[:-1]).sum()
        cells = np.where(flat.table < FORBIDDEN, np.abs(flat.table), 0)
        total += 2 * float(given) + float(_largest(cells, flat.at[:-1]).sum())
    joins = flat.joins
    if joins.start.size:
        starts = np.unique(joins.start)
        cells = np.where(joins.table < FORBIDDEN, joins.table, 0)
        largest = _largest(cells, starts)[np.searchsorted(starts, joins.start)]
        axes = np.sort(joins.message[joins.message > 0])
        total += 2 * float(_largest(np.abs(to_lines), axes).sum()) + float(largest.sum())
    return total, max(float(dear.max(initial=0.0)), float(before[-1]))


def _largest(values: IntArray | FloatArray, starts: IntArray) -> FloatArray:
    """The largest of every piece that begins at one of `starts`."""
    return np.maximum.reduceat(values, starts).astype(np.float64) if values.size else np.zeros(0)


def _ordered(flat: Flat, nodes: tuple[int, ...], tails: IntArray, heads: IntArray) -> IntArray:
    """Messages along `Core.pairs`: by ascending ids, those of the smaller id first."""
    ids = np.array(nodes, np.int64)
    ones, others = ids[flat.tail], ids[flat.head]
    turned = (ones > others).tolist()
    parts: list[IntArray] = []
    for e in np.lexsort((np.maximum(ones, others), np.minimum(ones, others))).tolist():
        pair = tails[flat.tail_at[e] : flat.tail_at[e + 1]], heads[flat.head_at[e] : flat.head_at[e + 1]]
        parts.extend(pair[::-1] if turned[e] else pair)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _along(joins: FlatJoins, lines: IntArray) -> IntArray:
    """Messages to the choices of the joins' nodes, join by join: those of its lines."""
    sizes = np.diff(np.concatenate((joins.class_at[joins.member >= 0], [joins.classes.size])))
    return lines[joins.classes + np.repeat(joins.message[joins.member >= 0], sizes)]


@compiled
def _least_of_joins(joins: FlatJoins, lines: IntArray, bits: int) -> IntArray:
    """Every join's least entry without its messages."""
    least = np.empty(joins.start.size, np.int64)
    for j in range(joins.start.size):
        shape, message = joins.lines[j], joins.message[j]
        lowest = INFINITE
        at = joins.start[j]
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
    flat: Flat, units: IntArray, tails: IntArray, heads: IntArray, lines: IntArray, bits: int, shift: int
) -> tuple[IntArray, IntArray]:
    """Every choice's cost, price and messages; every table's least entry without its messages."""
    joins = flat.joins
    entry = np.empty(flat.cost.size, np.int64)
    before = np.zeros(units.size + 1, np.int64)
    for row in range(units.size):
        before[row + 1] = before[row] + units[row]
    for i in range(flat.first.size - 1):
        begin = flat.first[i]
        for c in range(begin, flat.first[i + 1]):
            entry[c] = 0
        for s in range(flat.span_at[i], flat.span_at[i + 1]):
            weight = before[flat.span_last[s]] - before[flat.span_first[s]]
            for c in range(flat.first[i + 1] - begin):
                entry[begin + c] += weight * flat.amount[flat.span_start[s] + c]
        for c in range(begin, flat.first[i + 1]):
            if flat.cost[c] >= FORBIDDEN:
                entry[c] = INFINITE
            else:
                entry[c] = (entry[c] >> (shift - bits)) + (flat.cost[c] << bits)
    least = np.empty(flat.tail.size, np.int64)
    for e in range(flat.tail.size):
        columns = flat.head_at[e + 1] - flat.head_at[e]
        lowest = INFINITE
        for a in range(flat.tail_at[e + 1] - flat.tail_at[e]):
            mine = tails[flat.tail_at[e] + a]
            for b in range(columns):
                cell = flat.table[flat.at[e] + a * columns + b]
                if cell < FORBIDDEN:
                    lowest = min(lowest, (cell << bits) - mine - heads[flat.head_at[e] + b])
        least[e] = lowest
        for k in range(flat.tail_at[e + 1] - flat.tail_at[e]):
            c = flat.first[flat.tail[e]] + k
            if entry[c] < INFINITE:
                entry[c] += tails[flat.tail_at[e] + k]
        for k in range(columns):
            c = flat.first[flat.head[e]] + k
            if entry[c] < INFINITE:
                entry[c] += heads[flat.head_at[e] + k]
    for i in range(flat.first.size - 1):
        begin = flat.first[i]
        for k in range(joins.link_at[i], joins.link_at[i + 1]):
            j, axis = joins.link_join[k], joins.link_axis[k]
            for c in range(flat.first[i + 1] - begin):
                if entry[begin + c] < INFINITE:
                    entry[begin + c] += lines[joins.message[j, axis] + joins.classes[joins.class_at[j, axis] + c]]
    return entry, least
