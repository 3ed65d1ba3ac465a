"""What follows from prices and messages found in floating point, in exact integers, as a certificate states it.

Prices and messages are rounded to multiples of powers of two that keep every sum within 61 bits. Whatever they are, the
bound that follows from them holds; rounding costs tightness only. See `strategy.certificate.proof.Passed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strategy.certificate.proof import Passed, Prices
from strategy.problem import FORBIDDEN
from strategy.solve.compiled import compiled
from strategy.solve.core import IntArray
from strategy.solve.flat import Flat, FloatArray

# Magnitudes stay below 2^HEADROOM_BITS, well within what the checker adds exactly.
HEADROOM_BITS = 58
# A forbidden entry in scaled units.
INFINITE = 1 << 61
# Finer than this only costs space in a certificate.
FINEST_BITS = 30


@dataclass(frozen=True, slots=True)
class Stated:
    """One bound: what it proves of everything, and of whatever takes each choice.

    `entry[c]` is what choice c of `Flat.cost` adds to the sum of the other nodes' minima, in units of 2^-`bits`;
    `floor[i]` is node i's least entry; `total` is the sum of all minima; `credit` is in units of 2^-`shift`.
    """

    proof: Passed
    lower_bound: int
    entry: IntArray
    floor: IntArray
    total: int
    credit: int

    def reaches(self, first: IntArray, below: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Of every choice, whether all that takes it costs at least `below`; `first` is `Flat.first`."""
        prices = self.proof.prices
        enough = -(-((below - 1 << prices.shift) + self.credit + 1) >> (prices.shift - prices.bits))
        least = np.minimum(np.maximum(enough - self.total + self.floor, -INFINITE), INFINITE)
        return np.asarray(self.entry >= np.repeat(least, np.diff(first)))


def state(
    flat: Flat, nodes: tuple[int, ...], constant: int, prices: FloatArray, to_tail: FloatArray, to_head: FloatArray
) -> Stated:
    """The exact bound of a core.

    Args:
        flat: its arrays, in exact integers.
        nodes: the core's id of each of the arrays' nodes.
        constant: the core's constant.
        prices: of its rows; negative ones count as zero.
        to_tail, to_head: messages along the arrays' edges.
    """
    bits, shift = _scales(flat, prices, to_tail, to_head)
    units = np.rint(np.maximum(prices, 0.0) * 2.0**shift).astype(np.int64)
    tails = np.rint(to_tail * 2.0**bits).astype(np.int64)
    heads = np.rint(to_head * 2.0**bits).astype(np.int64)
    credit = sum(unit * room for unit, room in zip(units.tolist(), flat.room.tolist(), strict=True) if unit)
    credit -= constant << shift
    entry, edges = _entries(flat, units, tails, heads, bits, shift)
    floor = np.minimum.reduceat(entry, flat.first[:-1]) if entry.size else entry
    total = sum(floor.tolist()) + sum(edges.tolist())
    proved = -((credit - (total << (shift - bits))) >> shift)
    proof = Passed(Prices(units, shift, bits), _ordered(flat, nodes, tails, heads))
    return Stated(proof, proved, entry, floor, total, credit)


def _scales(flat: Flat, prices: FloatArray, to_tail: FloatArray, to_head: FloatArray) -> tuple[int, int]:
    """(bits, shift): the finest scales under which no sum leaves the headroom."""
    legal = np.where(flat.cost < FORBIDDEN, np.abs(flat.cost), 0).astype(np.float64)
    before = np.concatenate(([0.0], np.cumsum(prices)))
    held = (before[flat.span_last] - before[flat.span_first]) * _span_largest(flat)
    dear = _by_node(held, flat.span_at)
    given = np.zeros(flat.first.size - 1)
    edges = 0.0
    if flat.tail.size:
        tails = np.maximum.reduceat(np.abs(to_tail), flat.tail_at[:-1])
        heads = np.maximum.reduceat(np.abs(to_head), flat.head_at[:-1])
        np.add.at(given, flat.tail, tails)
        np.add.at(given, flat.head, heads)
        cells = np.where(flat.table < FORBIDDEN, np.abs(flat.table), 0)
        edges = float(cells.max()) + 2 * float(max(tails.max(), heads.max()))
    nodes = _by_node(legal, flat.first) + dear + given
    bits = min(HEADROOM_BITS - _exponent(max(float(nodes.max(initial=0)), edges)), FINEST_BITS)
    largest = _exponent(max(float(dear.max(initial=0)), float(before[-1])))
    return max(bits, 0), max(HEADROOM_BITS - largest, bits, 0)


def _exponent(value: float) -> int:
    return math.frexp(max(value, 1e-30))[1]


def _span_largest(flat: Flat) -> FloatArray:
    """The largest amount of every span."""
    if flat.span_start.size == 0:
        return np.zeros(0)
    return np.maximum.reduceat(flat.amount, flat.span_start).astype(np.float64)


def _by_node(values: FloatArray, starts: IntArray) -> FloatArray:
    """Sums over each node's items, which are `values[starts[i]:starts[i + 1]]`."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(sums[starts[1:]] - sums[starts[:-1]])


def _ordered(flat: Flat, nodes: tuple[int, ...], tails: IntArray, heads: IntArray) -> IntArray:
    """Messages along `Core.pairs`: by ascending ids, those of the smaller id first."""
    ids = np.array(nodes, np.int64)
    ones, others = ids[flat.tail], ids[flat.head]
    turned = ones > others
    order = np.lexsort((np.maximum(ones, others), np.minimum(ones, others)))
    parts = []
    for e in order.tolist():
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
