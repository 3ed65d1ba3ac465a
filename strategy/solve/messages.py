"""A bound without elimination: costs are moved between nodes and tables until every table sees its part of them.

Sequential tree-reweighted message passing (Kolmogorov 2006, IEEE TPAMI 28; in the form of Kolmogorov 2015, IEEE TPAMI
37). Nodes are visited in order and back; each takes what its tables to earlier nodes cannot avoid, and gives its tables
to later nodes equal shares of what it has. The sum over any choice stays as it was, and whatever all choices of a node
have in common moves into the constant, which is the bound. All of it is in integers, hence exact at every stop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from strategy.problem import FORBIDDEN
from strategy.solve.core import Core, IntArray

# Sums with a forbidden entry lie above this, all others below: legal totals stay under `core.MAX_TOTAL_COST`.
LEGAL = FORBIDDEN // 2
# Passing ends once a round gains less than this part of what all rounds have gained.
GAIN = 1e-3


@dataclass(slots=True)
class _Side:
    """A table as one of its nodes sees it: `given` is what the node has put on the table's rows."""

    other: int
    table: IntArray
    given: IntArray


def pass_messages(core: Core, *, below: int | None, deadline_s: float, max_rounds: int = 40) -> dict[int, int]:
    """Moves costs within `core` to raise its constant, and forbids choices that nothing cheaper than `below` takes.

    Args:
        core: rewritten in place; the cost of every choice stays as it was, but for the choices forbidden here.
        below: the cost from which on answers are of no interest.
        deadline_s: when to stop, by time.perf_counter.
        max_rounds: passes in order and back at most.

    Returns:
        The choice of every live node that its costs prefer after its earlier neighbours' choices; it may be illegal.

    Raises:
        NoChoiceError: nothing is cheaper than `below`.
    """
    return _Messages(core, below).run(deadline_s, max_rounds)


class _Messages:
    def __init__(self, core: Core, below: int | None) -> None:
        self.core, self.below = core, below
        self.order = list(core.costs)
        self.place = {node: k for k, node in enumerate(self.order)}
        self.own = {node: cost.copy() for node, cost in core.costs.items()}
        self.sides = {
            node: {other: _Side(other, table, np.zeros(table.shape[0], np.int64)) for other, table in tables.items()}
            for node, tables in core.tables.items()
        }

    def run(self, deadline_s: float, max_rounds: int) -> dict[int, int]:
        """Passes until the bound stands still."""
        started = self.core.constant
        for _ in range(max_rounds):
            before = self.core.constant
            self._pass(self.order, forward=True)
            self._pass(self.order[::-1], forward=False)
            gain = self.core.constant - before
            closed = self.below is not None and self.core.constant >= self.below
            if closed or gain <= GAIN * (self.core.constant - started) or time.perf_counter() > deadline_s:
                break
        picks = self._decode()
        self._write()
        return picks

    def _pass(self, order: list[int], *, forward: bool) -> None:
        """Every node takes from its tables to nodes before it, then gives to its tables to nodes after it."""
        for node in order:
            sides, own = self.sides[node], self.own[node]
            after = []
            for other, side in sides.items():
                if (self.place[other] > self.place[node]) == forward:
                    after.append(side)
                    continue
                least = (side.table + self.sides[other][node].given).min(axis=1)
                legal = least < LEGAL
                own += np.where(legal, least + side.given, FORBIDDEN)
                np.minimum(own, FORBIDDEN, out=own)
                side.given = np.where(legal, -least, side.given)
            least_own = int(own.min())
            if least_own >= LEGAL:
                own[:] = FORBIDDEN
                continue
            own -= least_own
            self.core.constant += least_own
            blocked = own >= self._hopeless()
            if blocked.any():
                own[blocked] = FORBIDDEN
                for side in sides.values():
                    side.given = np.where(blocked, FORBIDDEN, side.given)
            if after:
                share = np.where(own < LEGAL, own // max(len(after), len(sides) - len(after)), 0)
                own -= share * len(after)
                for side in after:
                    side.given = side.given + share

    def _hopeless(self) -> int:
        """What a choice must not cost beyond the constant; the cheapest, at zero, stays."""
        return LEGAL if self.below is None else min(LEGAL, max(self.below - self.core.constant, 1))

    def _decode(self) -> dict[int, int]:
        """Node by node, the cheapest option beside those already taken."""
        picks: dict[int, int] = {}
        for node in self.order:
            total = self.own[node].copy()
            for other, side in self.sides[node].items():
                there = self.sides[other][node].given
                cells = side.table + side.given[:, None]
                total += cells[:, picks[other]] + there[picks[other]] if other in picks else (cells + there).min(axis=1)
                np.minimum(total, FORBIDDEN, out=total)
            picks[node] = int(total.argmin())
        return picks

    def _write(self) -> None:
        for node, sides in self.sides.items():
            self.core.costs[node] = self.own[node]
            for other, side in sides.items():
                if node < other:
                    moved = side.table + side.given[:, None] + self.sides[other][node].given
                    self.core.set_table(
                        node, other, np.where(side.table >= FORBIDDEN, FORBIDDEN, np.minimum(moved, FORBIDDEN))
                    )
        self.core.normalise(self.core.pairs())
