"""Strong branching: on the node whose choices, each probed by a few steps of the ascent, promise the smallest tree.

Applegate, Bixby, Chvatal and Cook 1995 (DIMACS TR 95-05), here on bounds by messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strategy.ilp.solve.certified_bound import CertifiedBound
from strategy.ilp.solve.core import IntArray
from strategy.ilp.solve.dual_ascent import DualAscent
from strategy.ilp.solve.relaxation import PackedCore

# Nodes probed, steps per probe, and children at most.
PROBED_NODES = 10
PROBE_STEPS = 30
MOST_CHILDREN = 12
# A probe's penalty, in gaps.
PENALTY = 3.0
# A child that raises the bound by the whole gap but for a trace counts as 10^-DEPTH of one that does not.
DEPTH = 4.0
# How much the distance of the two best choices, in gaps, speaks against a node.
DISTANCE = 10.0


def choose_branching(
    packed: PackedCore, ascent: DualAscent, found: CertifiedBound, gap: float, spend: Callable[[int], None]
) -> tuple[int, tuple[IntArray, ...]]:
    """A node of the core, with at least two choices, and the lists of these, one per child.

    Args:
        packed: the relaxed core.
        ascent: at the end of its work.
        found: a bound of the core.
        gap: between bound and incumbent.
        spend: counts the entries read.
    """
    best: tuple[float, int] | None = None
    for i in _candidates(packed, ascent, found, gap):
        order = np.argsort(found.by_choice[packed.nodes[i]], kind="stable")[:MOST_CHILDREN]
        size = 0.0
        for choice in order.tolist():
            raised = ascent.probe(i, choice, PENALTY * gap, PROBE_STEPS) - ascent.bound
            size += 0.0 if raised >= gap else 10.0 ** (-DEPTH * max(raised, 0.0) / gap)
        spend(order.size * PROBE_STEPS * 2 * (packed.arrays.table.size + packed.arrays.joins.entries_read))
        if best is None or size < best[0]:
            best = size, i
    node = packed.nodes[0 if best is None else best[1]]
    return node, _children(found.by_choice[node])


def _children(totals: IntArray) -> tuple[IntArray, ...]:
    """The cheapest choices by themselves, and the rest together."""
    order = np.argsort(totals, kind="stable")
    if order.size <= MOST_CHILDREN:
        return tuple(np.array([choice]) for choice in order.tolist())
    alone = tuple(np.array([choice]) for choice in order[: MOST_CHILDREN - 1].tolist())
    return (*alone, np.sort(order[MOST_CHILDREN - 1 :]))


def _candidates(packed: PackedCore, ascent: DualAscent, found: CertifiedBound, gap: float) -> list[int]:
    """Nodes whose memory is priced most unevenly, then those with close choices and many tables.

    A node that memory has left a single choice of may be there still; there is nothing to branch on in it.
    """
    arrays = packed.arrays
    before = np.concatenate(([0.0], np.cumsum(ascent.best_prices)))
    uneven, close = np.zeros(len(packed.nodes)), np.full(len(packed.nodes), -1.0)
    unit = 2.0**found.proof.prices.bits * gap
    for i, node in enumerate(packed.nodes):
        size = arrays.choice_at[i + 1] - arrays.choice_at[i]
        if size == 1:
            continue
        totals = np.sort(found.by_choice[node])
        degree = sum(int(at[i + 1] - at[i]) for at in (arrays.link_at, arrays.joins.link_at))
        close[i] = degree / (1.0 + DISTANCE * float(totals[1] - totals[0]) / unit)
        for s in range(arrays.span_at[i], arrays.span_at[i + 1]):
            held = arrays.amount[arrays.span_start[s] : arrays.span_start[s] + size]
            uneven[i] += (before[arrays.span_last[s]] - before[arrays.span_first[s]]) * (held.max() - held.min())
    by_memory = [int(i) for i in np.argsort(-uneven, kind="stable") if uneven[i] > 0]
    by_tables = [int(i) for i in np.argsort(-close, kind="stable") if close[i] >= 0]
    return list(dict.fromkeys(by_memory[:PROBED_NODES] + by_tables))[:PROBED_NODES]
