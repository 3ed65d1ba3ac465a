"""Primal-dual: the dual ascent of a node with the primal heuristic beside it, in step with each other.

Both read the same count of table entries per round, and exchange what they know between rounds: the answer does not
depend on how fast either of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from strategy.ilp.solve.core import FloatArray
from strategy.ilp.solve.dual_ascent import DualAscent
from strategy.ilp.solve.evaluate import fits
from strategy.ilp.solve.packed_arrays import LEAST_FORBIDDEN
from strategy.ilp.solve.primal import PrimalHeuristic
from strategy.ilp.solve.progress import Progress
from strategy.ilp.solve.relaxation import PackedCore, Relaxation

# Entries that one round of the ascent reads, and the least and the most steps that it takes.
ROUND_ENTRIES = 20_000_000
LEAST_STEPS, MOST_STEPS = 4, 25
# From this many cells on the primal has a thread of its own.
THREADED_CELLS = 100_000
# Rounds between two liftings of slightly better choices, and what is more than slight.
LIFTED_EVERY = 20
SLIGHT = 1e-3


@dataclass(frozen=True, slots=True)
class Patience:
    """An ascent ends when `steps` steps have gained less than `part` of the gap."""

    steps: int
    part: float


class PrimalDual:
    """Runs the ascents; beside them the primal heuristic on the arrays where the first of them began."""

    def __init__(self, progress: Progress, pool: ThreadPoolExecutor) -> None:
        self.progress = progress
        self.pool = pool
        self.home: PackedCore | None = None
        self.primal: PrimalHeuristic | None = None
        self.prices: FloatArray = np.zeros(0)  # (R,) of the home's memory rows
        self.rounds = 0
        self.credit = 0  # entries that the primal may read before it is level with the ascents

    def run(
        self,
        relaxation: Relaxation,
        ascent: DualAscent,
        patience: Patience,
        *,
        gap_at: Callable[[float], float],
        tell: Callable[[], None],
    ) -> None:
        """Raises prices and messages until that stalls or the node is closed.

        Args:
            relaxation: where.
            ascent: of its relaxed arrays.
            patience: when to stop.
            gap_at: what a bound leaves open; 0 where it closes the node.
            tell: called now and then, to certify the bound.
        """
        full = relaxation.full
        core = full.core
        if self.home is None or self.primal is None:
            self.home = PackedCore(core.copy(), full.arrays, full.nodes)
            self.primal = PrimalHeuristic(full.arrays)
        local = self.primal if self.home.arrays is full.arrays else PrimalHeuristic(full.arrays)
        entries = ascent.step_entries
        steps = max(LEAST_STEPS, min(ROUND_ENTRIES // entries, MOST_STEPS))
        wide = max(patience.steps // steps, 1)
        bounds: list[float] = []
        while not ascent.converged:
            self._round(self.home, self.primal, relaxation, ascent, steps * entries, steps)
            self._offer_decoded(relaxation, ascent)
            bound = ascent.bound + core.constant
            bounds.append(bound)
            gap = gap_at(bound)
            if gap <= 0 or (len(bounds) > wide and bound - bounds[-1 - wide] < patience.part * gap):
                break
            if len(bounds) % wide == 0:
                tell()
        if local is not self.primal:
            decoded = relaxation.complete(ascent.decoded)
            local.consider(decoded, ascent.best_prices, abs(ascent.bound + core.constant))
            self._lift(full, local)
        self._lift(self.home, self.primal)

    def repair(self, packed: PackedCore, picks: Mapping[int, int], scale: float) -> None:
        """Offers a choice that holds too much, once it is repaired; `scale` is the magnitude of costs."""
        local = PrimalHeuristic(packed.arrays)
        candidate = np.array([picks[node] for node in packed.nodes], np.int64)
        local.consider(candidate, np.zeros(packed.core.room.size), scale)
        self._lift(packed, local)

    def _offer_decoded(self, relaxation: Relaxation, ascent: DualAscent) -> None:
        """Offers the cheapest choice that the last steps decoded, if it is better and legal as it is."""
        upper_bound, value = self.progress.upper_bound, ascent.decoded_score + relaxation.full.core.constant
        better = value < (LEAST_FORBIDDEN if upper_bound is None else upper_bound - 0.5)
        if better and fits(relaxation.relaxed.arrays, ascent.decoded):
            picks = relaxation.complete(ascent.decoded).tolist()
            self.progress.offer_picks(relaxation.full.core, dict(zip(relaxation.full.nodes, picks, strict=True)))

    def _round(
        self,
        home: PackedCore,
        primal: PrimalHeuristic,
        relaxation: Relaxation,
        ascent: DualAscent,
        entries: int,
        steps: int,
    ) -> None:
        """Some steps of the ascent, which read so many entries, and as much work of the primal."""
        is_over = self.progress.budget.is_over
        candidate = None
        scale = 1.0
        if relaxation.full.arrays is home.arrays and np.isfinite(ascent.decoded_score):
            candidate = relaxation.complete(ascent.decoded)
            self.prices = ascent.best_prices.copy()
            scale = abs(ascent.bound + home.core.constant)

        def improve() -> None:
            self.credit += entries
            if candidate is not None and self.credit > 0:
                self.credit -= primal.consider(candidate, self.prices, scale)
            self.credit = primal.improve(self.prices, self.credit, is_over)

        if home.arrays.table.size >= THREADED_CELLS:
            beside = self.pool.submit(improve)
            try:
                ascent.ascend(steps, is_over)
            finally:
                beside.result()
        else:
            ascent.ascend(steps, is_over)
            improve()
        self.rounds += 1
        self._lift(home, primal, slight=self.rounds % LIFTED_EVERY == 0)
        self.progress.spend(entries)

    def _lift(self, packed: PackedCore, primal: PrimalHeuristic, *, slight: bool = True) -> None:
        """Offers the best choice of `primal` unless it is no better, or but slightly."""
        if primal.picks is None:
            return
        upper_bound = self.progress.upper_bound
        value = primal.value + packed.core.constant
        if upper_bound is None or value < upper_bound - (0.5 if slight else SLIGHT * abs(upper_bound)):
            self.progress.offer_picks(packed.core, dict(zip(packed.nodes, primal.picks.tolist(), strict=True)))
