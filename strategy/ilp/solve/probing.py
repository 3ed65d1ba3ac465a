"""Which node to branch on: the one whose choices, each probed by a few steps of the ascent, promise the smallest tree.

Strong branching (Applegate, Bixby, Chvatal and Cook 1995, DIMACS TR 95-05), on bounds by messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strategy.ilp.solve.certified_bound import Stated
from strategy.ilp.solve.core import IntArray
from strategy.ilp.solve.dual_ascent import Ascent
from strategy.ilp.solve.relaxation import Place

# Nodes probed, steps per probe, and parts at most.
PROBED_NODES = 10
PROBE_STEPS = 30
MOST_PARTS = 12
# A probe's penalty, in gaps.
PENALTY = 3.0
# A part that raises the bound by the whole gap but for a trace counts as 10^-DEPTH of one that does not.
DEPTH = 4.0
# How much the distance of the two best choices, in gaps, speaks against a node.
DISTANCE = 10.0


def branch_on(
    place: Place, ascent: Ascent, stated: Stated, gap: float, spend: Callable[[int], None]
) -> tuple[int, tuple[IntArray, ...]]:
    """A node of the core and the lists of its choices, one per part.

    Args:
        place: the case; each of its nodes has at least two choices.
        ascent: at the end of its work.
        stated: a bound of the case.
        gap: between bound and incumbent.
        spend: counts the entries read.
    """
    best: tuple[float, int] | None = None
    for i in _candidates(place, ascent, stated, gap):
        order = np.argsort(stated.by_choice[place.nodes[i]], kind="stable")[:MOST_PARTS]
        size = 0.0
        for choice in order.tolist():
            raised = ascent.probe(i, choice, PENALTY * gap, PROBE_STEPS) - ascent.bound
            size += 0.0 if raised >= gap else 10.0 ** (-DEPTH * max(raised, 0.0) / gap)
        spend(order.size * PROBE_STEPS * 2 * (place.flat.table.size + place.flat.joins.read))
        if best is None or size < best[0]:
            best = size, i
    node = place.nodes[0 if best is None else best[1]]
    return node, _parts(stated.by_choice[node])


def _parts(totals: IntArray) -> tuple[IntArray, ...]:
    """The cheapest choices by themselves, and the rest together."""
    order = np.argsort(totals, kind="stable")
    if order.size <= MOST_PARTS:
        return tuple(np.array([choice]) for choice in order.tolist())
    alone = tuple(np.array([choice]) for choice in order[: MOST_PARTS - 1].tolist())
    return (*alone, np.sort(order[MOST_PARTS - 1 :]))


def _candidates(place: Place, ascent: Ascent, stated: Stated, gap: float) -> list[int]:
    """Nodes whose memory is priced most unevenly, then those with close choices and many tables."""
    flat = place.flat
    before = np.concatenate(([0.0], np.cumsum(ascent.best_prices)))
    uneven, close = np.zeros(len(place.nodes)), np.zeros(len(place.nodes))
    unit = 2.0**stated.proof.prices.bits * gap
    for i, node in enumerate(place.nodes):
        size = flat.first[i + 1] - flat.first[i]
        totals = np.sort(stated.by_choice[node])
        degree = sum(int(at[i + 1] - at[i]) for at in (flat.link_at, flat.joins.link_at))
        close[i] = degree / (1.0 + DISTANCE * float(totals[1] - totals[0]) / unit)
        for s in range(flat.span_at[i], flat.span_at[i + 1]):
            held = flat.amount[flat.span_start[s] : flat.span_start[s] + size]
            uneven[i] += (before[flat.span_last[s]] - before[flat.span_first[s]]) * (held.max() - held.min())
    by_memory = [int(i) for i in np.argsort(-uneven, kind="stable") if uneven[i] > 0]
    by_tables = [int(i) for i in np.argsort(-close, kind="stable")]
    return list(dict.fromkeys(by_memory[:PROBED_NODES] + by_tables))[:PROBED_NODES]
