"""Prices of memory raised together with the messages: one sweep there and back per step.

A step follows the deflected subgradient (Camerini, Fratta and Maffioli 1975): the excess of the decoded choice over
the rows' room, averaged over steps. Its length aims at a gain `delta` (Polyak 1969; Brannlund 1993, target levels):
steps that pass it make it larger, and after a run of steps without gain the best prices and messages are restored and
`delta` shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.evaluate import cost_of, load_of
from strategy.ilp.solve.packed_arrays import Flat
from strategy.ilp.solve.trws import Messages, assign, no_messages, price, sweep

# Share of the old direction in the new one.
DEFLECTION = 0.7
# Steps without gain before the best is restored, and what `delta` then shrinks to.
PATIENCE = 15
SHRINK = 0.6
# A gain beyond this part of `delta` makes it larger.
SURPASSED = 0.3
GROWTH = 1.2
# The first step aims at this part of the bound, or of the largest costs where that is zero.
FIRST_AIM = 0.1
# Sweeps before the first step, with the prices at rest.
WARM_SWEEPS = 10
# The first step of a probe aims at this part of its penalty.
PROBE_AIM = 0.1
# The ascent has converged once `delta` is below this part of the bound.
CONVERGED = 1e-9

# Where the scalars of the state lie in `Ascent.scalars`.
BEST, DELTA, FAILS, STARTED, CONSTANT, NEAREST = range(6)


@dataclass(frozen=True, slots=True)
class Ascent:
    """What the ascent knows: the present and the best prices and messages; arrays are written in place."""

    flat: Flat
    prices: FloatArray
    messages: Messages
    best_prices: FloatArray
    best_messages: Messages
    direction: FloatArray
    picks: IntArray
    priced: FloatArray
    nearest: IntArray
    scalars: FloatArray

    @property
    def bound(self) -> float:
        """The best bound so far, in floating point, without the core's constant."""
        return float(self.scalars[BEST])

    @property
    def converged(self) -> bool:
        """Whether steps have become too short to matter."""
        scale = max(abs(self.bound + self.scalars[CONSTANT]), 1.0)
        return bool(self.scalars[STARTED] > 0 and self.scalars[DELTA] < CONVERGED * scale)

    def climb(self, steps: int) -> None:
        """Takes `steps` steps; `nearest` is then the cheapest choice decoded, excess memory priced dearly."""
        self.scalars[NEAREST] = np.inf
        _climb(
            self.flat,
            self.prices,
            self.messages,
            self.best_prices,
            self.best_messages,
            self.direction,
            self.picks,
            self.priced,
            self.nearest,
            self.scalars,
            steps,
        )

    def probe(self, node: int, choice: int, penalty: float, steps: int) -> float:
        """The bound that is reached from the best one in `steps` steps once other choices of a node cost more."""
        begin, end = self.flat.first[node], self.flat.first[node + 1]
        cost = self.flat.cost.copy()
        cost[begin:end] += penalty
        cost[begin + choice] -= penalty
        scalars = self.scalars.copy()
        scalars[BEST], scalars[DELTA], scalars[FAILS], scalars[NEAREST] = -np.inf, PROBE_AIM * penalty, -1, np.inf
        prices, messages = self.best_prices.copy(), self.best_messages.copy()
        _climb(
            self.flat._replace(cost=cost), prices, messages, prices.copy(), messages.copy(),
            np.zeros(prices.size), self.picks.copy(), cost.copy(), self.picks.copy(), scalars, steps,
        )  # fmt: skip
        return float(scalars[BEST])


def start_ascent(flat: Flat, constant: int, prices: FloatArray, aim: float | None = None) -> Ascent:
    """An ascent from `prices` on the working copy `flat`.

    Args:
        flat: the arrays.
        constant: the core's.
        prices: of the rows.
        aim: the gain that the first step aims at.
    """
    rows = flat.room.size
    begin = prices.copy()
    scalars = np.zeros(6)
    scalars[BEST] = -np.inf
    scalars[CONSTANT] = constant
    scalars[DELTA] = 0.0 if aim is None else aim
    return Ascent(
        flat, begin, no_messages(flat), begin.copy(), no_messages(flat), np.zeros(rows),
        np.zeros(flat.first.size - 1, np.int64), flat.cost.copy(), np.zeros(flat.first.size - 1, np.int64), scalars,
    )  # fmt: skip


@compiled
def _climb(
    flat: Flat,
    prices: FloatArray,
    messages: Messages,
    best_prices: FloatArray,
    best_messages: Messages,
    direction: FloatArray,
    picks: IntArray,
    priced: FloatArray,
    nearest: IntArray,
    scalars: FloatArray,
    steps: int,
) -> None:
    rows = prices.size
    roomy = max(1.0, np.mean(flat.room)) if rows else 1.0
    load = load_of(flat, picks)
    for _ in range(steps):
        rounds = 1
        if scalars[STARTED] == 0:
            rounds = WARM_SWEEPS
        else:
            squared = 0.0
            fresh = scalars[FAILS] < 0
            for row in range(rows):
                excess = load[row] - flat.room[row]
                direction[row] = excess if fresh else DEFLECTION * direction[row] + (1 - DEFLECTION) * excess
                if prices[row] > 0 or direction[row] > 0:
                    squared += direction[row] * direction[row]
            if fresh:
                scalars[FAILS] = 0
            if squared > 0:
                length = scalars[DELTA] / squared
                for row in range(rows):
                    prices[row] = max(0.0, prices[row] + length * direction[row])
        price(flat, prices, priced)
        value = 0.0
        for _ in range(rounds):
            sweep(flat, priced, messages, True, picks)
            value = sweep(flat, priced, messages, False, picks)
        load = load_of(flat, picks)
        over = 0.0
        for row in range(rows):
            over = max(over, load[row] - flat.room[row])
        score = cost_of(flat, picks)
        score += over / roomy * (abs(scalars[BEST] + scalars[CONSTANT]) if scalars[STARTED] else 1.0)
        if score < scalars[NEAREST]:
            scalars[NEAREST] = score
            nearest[:] = picks
        for row in range(rows):
            value -= prices[row] * flat.room[row]
        if scalars[STARTED] == 0:
            scalars[STARTED] = 1
            scalars[FAILS] = -1
            if scalars[DELTA] == 0:
                scalars[DELTA] = FIRST_AIM * max(abs(value + scalars[CONSTANT]), 1.0)
        elif value > scalars[BEST]:
            if value > scalars[BEST] + SURPASSED * scalars[DELTA]:
                scalars[DELTA] *= GROWTH
            scalars[FAILS] = 0
        else:
            scalars[FAILS] += 1
            if scalars[FAILS] >= PATIENCE:
                scalars[DELTA] *= SHRINK
                scalars[FAILS] = -1
                prices[:] = best_prices
                assign(messages, best_messages)
                continue
        if value > scalars[BEST]:
            scalars[BEST] = value
            best_prices[:] = prices
            assign(best_messages, messages)
