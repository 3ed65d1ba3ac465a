"""The bound of prices and messages, stated in exact integers."""

from __future__ import annotations

import numpy as np

from strategy.certificate.proof import Passed, Prices
from strategy.compiled import compiled
from strategy.problem import FORBIDDEN
from strategy.solve.ascent import Ascent
from strategy.solve.core import Core, IntArray
from strategy.solve.exact import INFINITE, LARGEST, Stated, credit_of, proved, scales
from strategy.solve.flat import Flat, FloatArray


def state_messages(core: Core, flat: Flat, nodes: tuple[int, ...], ascent: Ascent) -> Stated:
    """What follows from the best prices and messages of an ascent.

    Args:
        core: the core.
        flat: its arrays, in exact integers.
        nodes: the core's id of each of the arrays' nodes.
        ascent: over the same arrays.
    """
    prices, to_tail, to_head = ascent.best_prices, ascent.best_to_tail, ascent.best_to_head
    total, priced = _magnitudes(flat, prices, to_tail, to_head)
    if total > LARGEST:
        part = LARGEST / total
        prices, to_tail, to_head, priced = part * prices, part * to_tail, part * to_head, part * priced
    bits, shift = scales(total, priced)
    units = np.rint(prices * 2.0**shift).astype(np.int64)
    tails = np.rint(to_tail * 2.0**bits).astype(np.int64)
    heads = np.rint(to_head * 2.0**bits).astype(np.int64)
    entry, edges = _entries(flat, units, tails, heads, bits, shift)
    exact = Prices(units, shift, bits)
    credit = credit_of(units, flat.room, core.constant, shift)
    floor = np.minimum.reduceat(entry, flat.first[:-1]) if entry.size else entry
    least = int(floor.sum()) + int(edges.sum())
    reached = np.where(entry >= INFINITE, INFINITE, entry + np.repeat(least - floor, np.diff(flat.first)))
    by_choice = {node: reached[flat.first[i] : flat.first[i + 1]] for i, node in enumerate(nodes)}
    proof = Passed(exact, _ordered(flat, nodes, tails, heads))
    return Stated(proof, proved(least, credit, exact), by_choice, credit)


def _magnitudes(flat: Flat, prices: FloatArray, to_tail: FloatArray, to_head: FloatArray) -> tuple[float, float]:
    """The largest sum of costs, prices and messages, and of a node's priced bytes."""
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


@compiled
def _entries(
    flat: Flat, units: IntArray, tails: IntArray, heads: IntArray, bits: int, shift: int
) -> tuple[IntArray, IntArray]:
    """Every choice's cost, price and messages; every table's least entry without its messages."""
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
    return entry, least
