"""The ascent of a case with the search for cheaper choices beside it, in step with each other.

Both read the same count of entries per round, and exchange what they know between rounds: the answer does not depend on
how fast either of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from strategy.ilp.solve.core import FloatArray
from strategy.ilp.solve.dual_ascent import NEAREST, Ascent
from strategy.ilp.solve.evaluate import fits
from strategy.ilp.solve.packed_arrays import LEGAL
from strategy.ilp.solve.primal import Primal
from strategy.ilp.solve.progress import Progress
from strategy.ilp.solve.relaxation import Place, Relaxation

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


class Chase:
    """What runs beside the ascents: the primal of the place where the first of them began."""

    def __init__(self, progress: Progress, pool: ThreadPoolExecutor) -> None:
        self.progress = progress
        self.pool = pool
        self.home: Place | None = None
        self.primal: Primal | None = None
        self.prices: FloatArray = np.zeros(0)
        self.rounds = 0
        self.credit = 0  # entries that the primal may read before it is level with the ascents

    def ascend(
        self,
        place: Relaxation,
        ascent: Ascent,
        patience: Patience,
        *,
        gap: Callable[[float], float],
        tell: Callable[[], None],
    ) -> None:
        """Raises prices and messages until that stalls or the case is closed.

        Args:
            place: where.
            ascent: of its inner arrays.
            patience: when to stop.
            gap: what a bound leaves open; 0 where it closes the case.
            tell: called now and then, to state the bound.
        """
        whole, flat = place.whole, place.inner.flat
        core = whole.core
        if self.home is None or self.primal is None:
            self.home, self.primal = Place(core.copy(), whole.flat, whole.nodes), Primal(whole.flat)
        local = self.primal if self.home.flat is whole.flat else Primal(whole.flat)
        entries = 2 * (flat.table.size + flat.joins.read) + flat.cost.size + flat.room.size
        steps = max(LEAST_STEPS, min(ROUND_ENTRIES // entries, MOST_STEPS))
        wide = max(patience.steps // steps, 1)
        window: list[float] = []
        while not ascent.converged:
            self._round(self.home, self.primal, place, ascent, steps * entries, steps)
            self._offer_nearest(place, ascent)
            reached = ascent.bound + core.constant
            window.append(reached)
            left = gap(reached)
            if left <= 0 or (len(window) > wide and reached - window[-1 - wide] < patience.part * left):
                break
            if len(window) % wide == 0:
                tell()
        if local is not self.primal:
            nearest = place.completed(ascent.nearest)
            local.consider(nearest, ascent.best_prices, abs(ascent.bound + core.constant))
            self._lift(whole, local)
        self._lift(self.home, self.primal)

    def _offer_nearest(self, place: Relaxation, ascent: Ascent) -> None:
        """Offers the cheapest choice that the last steps decoded, if it is better and legal as it is."""
        below, value = self.progress.below, ascent.scalars[NEAREST] + place.whole.core.constant
        better = value < (LEGAL if below is None else below - 0.5)
        if better and fits(place.inner.flat, ascent.nearest):
            picks = place.completed(ascent.nearest).tolist()
            self.progress.offer_picks(place.whole.core, dict(zip(place.whole.nodes, picks, strict=True)))

    def repair(self, place: Place, picks: Mapping[int, int], scale: float) -> None:
        """Offers a choice that holds too much, once it is repaired; `scale` is the magnitude of costs."""
        local = Primal(place.flat)
        candidate = np.array([picks[node] for node in place.nodes], np.int64)
        local.consider(candidate, np.zeros(place.core.room.size), scale)
        self._lift(place, local)

    def _round(self, home: Place, primal: Primal, place: Relaxation, ascent: Ascent, entries: int, steps: int) -> None:
        """Some steps of the ascent, which read so many entries, and as much work of the primal."""
        candidate = None
        scale = 1.0
        if place.whole.flat is home.flat and np.isfinite(ascent.scalars[NEAREST]):
            candidate = place.completed(ascent.nearest)
            self.prices = ascent.best_prices.copy()
            scale = abs(ascent.bound + home.core.constant)

        def improve() -> None:
            self.credit += entries
            if candidate is not None and self.credit > 0:
                self.credit -= primal.consider(candidate, self.prices, scale)
            self.credit = primal.improve(self.prices, self.credit)

        if home.flat.table.size >= THREADED_CELLS:
            beside = self.pool.submit(improve)
            try:
                ascent.climb(steps)
            finally:
                beside.result()
        else:
            ascent.climb(steps)
            improve()
        self.rounds += 1
        self._lift(home, primal, slight=self.rounds % LIFTED_EVERY == 0)
        self.progress.spend(entries)

    def _lift(self, place: Place, primal: Primal, *, slight: bool = True) -> None:
        """Offers the best choice of `primal` unless it is no better, or but slightly."""
        if primal.picks is None:
            return
        below = self.progress.below
        value = primal.value + place.core.constant
        if below is None or value < below - (0.5 if slight else SLIGHT * abs(below)):
            self.progress.offer_picks(place.core, dict(zip(place.nodes, primal.picks.tolist(), strict=True)))
