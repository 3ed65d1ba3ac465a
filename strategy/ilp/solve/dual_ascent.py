"""Dual ascent: Lagrange multipliers (prices) of memory raised together with the messages, one TRW-S sweep each way.

A step follows the deflected subgradient (Camerini, Fratta and Maffioli 1975): the excess of the decoded choice over
the rows' room, averaged over steps. Its length aims at a gain `delta` (Polyak 1969; Brannlund 1993, target levels):
steps that pass it make it larger, and after a run of steps without gain the best prices and messages are restored and
`delta` shrinks.

Shapes: N nodes, C choices in all, R memory rows (see `packed_arrays`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from strategy.base.compiled import compiled
from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.evaluate import cost_of, load_of
from strategy.ilp.solve.packed_arrays import PackedArrays
from strategy.ilp.solve.trws import (
    TrwsMessages,
    overwrite_messages,
    price_memory,
    sweep_work,
    trws_sweep,
    zero_messages,
)

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
# Entries that steps read before they ask whether the time is over: some hundredths of a second.
UNASKED_ENTRIES = 2_000_000
# The ascent has converged once `delta` is below this part of the bound.
CONVERGED = 1e-9

# Where the scalars lie in `AscentState.scalars`: the best bound, `delta`, steps without gain (-1: the direction starts
# anew), whether the first sweeps are done, the core's constant, and the score of `decoded`.
BEST, DELTA, FAILS, STARTED, CONSTANT, DECODED_SCORE = range(6)


class AscentState(NamedTuple):
    """What the loop knows, written in place: float64 but for `picks` and `decoded`, which are int64."""

    prices: FloatArray  # (R,) of a byte in every memory row, >= 0
    messages: TrwsMessages
    best_prices: FloatArray  # (R,) of the best bound
    best_messages: TrwsMessages
    direction: FloatArray  # (R,) averaged excess over the room
    picks: IntArray  # (N,) what the last sweep decoded
    priced: FloatArray  # (C,) costs with memory priced
    decoded: IntArray  # (N,) the cheapest choice decoded, excess memory priced dearly
    scalars: FloatArray  # (6,) by the names above


@dataclass(frozen=True, slots=True)
class DualAscent:
    """An ascent over the working copy `arrays`, at some state."""

    arrays: PackedArrays
    state: AscentState

    @property
    def bound(self) -> float:
        """The best bound so far, in floating point, without the core's constant."""
        return float(self.state.scalars[BEST])

    @property
    def best_prices(self) -> FloatArray:
        """The prices of the best bound, (R,)."""
        return self.state.best_prices

    @property
    def best_messages(self) -> TrwsMessages:
        """The messages of the best bound."""
        return self.state.best_messages

    @property
    def decoded(self) -> IntArray:
        """The cheapest choice that the last call of `ascend` decoded, (N,); excess memory is priced dearly."""
        return self.state.decoded

    @property
    def decoded_score(self) -> float:
        """The cost of `decoded` without the core's constant, with its excess memory priced; infinity without one."""
        return float(self.state.scalars[DECODED_SCORE])

    @property
    def converged(self) -> bool:
        """Whether steps have become too short to matter."""
        scalars = self.state.scalars
        scale = max(abs(self.bound + scalars[CONSTANT]), 1.0)
        return bool(scalars[STARTED] > 0 and scalars[DELTA] < CONVERGED * scale)

    @property
    def step_entries(self) -> int:
        """Entries that a step reads: what it takes on any machine."""
        arrays = self.arrays
        return 2 * (arrays.table.size + arrays.joins.entries_read) + arrays.cost.size + arrays.room.size

    def ascend(self, steps: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Takes `steps` steps, or those that it began before `is_over`, which is asked now and then."""
        self.state.scalars[DECODED_SCORE] = np.inf
        at_once = max(UNASKED_ENTRIES // max(self.step_entries, 1), 1)
        for done in range(0, steps, at_once):
            if is_over():
                return
            _ascend(self.arrays, self.state, min(at_once, steps - done))

    def probe(self, node: int, choice: int, penalty: float, steps: int) -> float:
        """The bound that is reached from the best one in `steps` steps once other choices of a node cost more."""
        begin, end = self.arrays.choice_at[node], self.arrays.choice_at[node + 1]
        cost = self.arrays.cost.copy()
        cost[begin:end] += penalty
        cost[begin + choice] -= penalty
        scalars = self.state.scalars.copy()
        scalars[BEST], scalars[DELTA], scalars[FAILS] = -np.inf, PROBE_AIM * penalty, -1
        scalars[DECODED_SCORE] = np.inf
        prices, messages = self.best_prices.copy(), self.best_messages.copy()
        state = AscentState(
            prices, messages, prices.copy(), messages.copy(), direction=np.zeros(prices.size),
            picks=self.state.picks.copy(), priced=cost.copy(), decoded=self.state.picks.copy(), scalars=scalars,
        )  # fmt: skip
        _ascend(self.arrays._replace(cost=cost), state, steps)
        return float(scalars[BEST])


def start_dual_ascent(arrays: PackedArrays, constant: int, prices: FloatArray, aim: float | None = None) -> DualAscent:
    """An ascent that has yet to take its first step.

    Args:
        arrays: the working copy, in floats.
        constant: the core's.
        prices: (R,), where to start.
        aim: the gain that the first step aims at.
    """
    nodes = arrays.choice_at.size - 1
    begin = prices.copy()
    scalars = np.zeros(6)
    scalars[BEST] = -np.inf
    scalars[CONSTANT] = constant
    scalars[DELTA] = 0.0 if aim is None else aim
    state = AscentState(
        begin, zero_messages(arrays), begin.copy(), zero_messages(arrays), direction=np.zeros(arrays.room.size),
        picks=np.zeros(nodes, np.int64), priced=arrays.cost.copy(), decoded=np.zeros(nodes, np.int64), scalars=scalars,
    )  # fmt: skip
    return DualAscent(arrays, state)


@compiled
def _ascend(arrays: PackedArrays, state: AscentState, steps: int) -> None:
    """Takes `steps` steps: prices along the direction, a sweep each way, and the best kept; `state` is rewritten."""
    prices, messages, direction = state.prices, state.messages, state.direction
    picks, scalars = state.picks, state.scalars
    rows = prices.size
    roomy = max(1.0, np.mean(arrays.room)) if rows else 1.0
    load = load_of(arrays, picks)  # (R,)
    work = sweep_work(arrays)
    for _ in range(steps):
        rounds = 1
        if scalars[STARTED] == 0:
            rounds = WARM_SWEEPS
        else:
            squared = 0.0
            fresh = scalars[FAILS] < 0
            for row in range(rows):
                excess = load[row] - arrays.room[row]
                direction[row] = excess if fresh else DEFLECTION * direction[row] + (1 - DEFLECTION) * excess
                if prices[row] > 0 or direction[row] > 0:
                    squared += direction[row] * direction[row]
            if fresh:
                scalars[FAILS] = 0
            if squared > 0:
                length = scalars[DELTA] / squared
                for row in range(rows):
                    prices[row] = max(0.0, prices[row] + length * direction[row])
        price_memory(arrays, prices, state.priced)
        value = 0.0
        for _ in range(rounds):
            trws_sweep(arrays, state.priced, messages, True, picks, work)
            value = trws_sweep(arrays, state.priced, messages, False, picks, work)
        load = load_of(arrays, picks)
        over = 0.0
        for row in range(rows):
            over = max(over, load[row] - arrays.room[row])
        score = cost_of(arrays, picks)
        score += over / roomy * (abs(scalars[BEST] + scalars[CONSTANT]) if scalars[STARTED] else 1.0)
        if score < scalars[DECODED_SCORE]:
            scalars[DECODED_SCORE] = score
            state.decoded[:] = picks
        for row in range(rows):
            value -= prices[row] * arrays.room[row]
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
                prices[:] = state.best_prices
                overwrite_messages(messages, state.best_messages)
                continue
        if value > scalars[BEST]:
            scalars[BEST] = value
            state.best_prices[:] = prices
            overwrite_messages(state.best_messages, messages)
