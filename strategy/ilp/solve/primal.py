"""Primal heuristic: cheaper choices of one core, by repaired decodes, then forest moves and coordinate descent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.descent import descend, repair
from strategy.ilp.solve.evaluate import cost_of, fits
from strategy.ilp.solve.forest import optimise_forest, random_region
from strategy.ilp.solve.packed_arrays import LEAST_FORBIDDEN, PackedArrays
from strategy.ilp.solve.trws import price_memory

# Sweeps of repair and descent of a decoded choice, and of one that a forest has moved.
DECODED_SWEEPS = 30
MOVED_SWEEPS = 8
# Every third move is of a forest over all nodes, the others of one among so many.
WHOLE_EVERY = 3
REGION_NODES = 200
# Memory's prices rise when a move breaks a limit and fall when it does not.
RISE, FALL = 1.01, 0.997
# Moves between two pricings.
REPRICED = 10


class PrimalHeuristic:
    """The cheapest legal choice known of a core's arrays, and how to better it; deterministic in the work done."""

    def __init__(self, arrays: PackedArrays) -> None:
        self.arrays = arrays
        self.picks: IntArray | None = None
        self.value = np.inf
        self.weight = 1.0
        self.factor = 1.0
        self.turn = 0
        self.priced = arrays.cost.copy()
        # Entries that a sweep of descent and one of repair read.
        sizes = np.diff(arrays.choice_at)
        self.line_work = int(arrays.cost.size + sizes[arrays.tail].sum() + sizes[arrays.head].sum())
        self.sweep_work = self.line_work + int((arrays.span_last - arrays.span_first).sum())

    def consider(self, candidate: IntArray, prices: FloatArray, scale: float) -> int:
        """Takes a choice (N,), repaired if need be. Returns the entries read.

        `prices` (R,) are those of memory while it is repaired, `scale` is the magnitude of costs.
        """
        self.weight = scale / max(float(self.arrays.room.mean()), 1.0) if self.arrays.room.size else 1.0
        self.turn += 1
        picks = candidate.copy()
        price_memory(self.arrays, prices, self.priced)
        sweeps = repair(self.arrays, self.priced, picks, self.weight, DECODED_SWEEPS, self.turn)
        work = abs(sweeps) * self.sweep_work
        if sweeps > 0:
            work += descend(self.arrays, picks, DECODED_SWEEPS, self.turn) * self.line_work
            self._accept(picks)
        return work

    def improve(self, prices: FloatArray, work: int, is_over: Callable[[], bool] = lambda: False) -> int:
        """Moves from the best choice at `prices` (R,) until `work` entries are read or it `is_over`.

        Returns the entries left to read: <= 0 where the time was enough.
        """
        if self.picks is None:
            return min(work, 0)
        nodes = self.picks.size
        while work > 0 and not is_over():
            if self.turn % REPRICED == 0:
                price_memory(self.arrays, prices * self.factor, self.priced)
            self.turn += 1
            whole = self.turn % WHOLE_EVERY == 0
            size = nodes if whole else min(REGION_NODES, nodes)
            picks = self.picks.copy()
            optimise_forest(self.arrays, self.priced, picks, random_region(self.arrays, size, self.turn))
            work -= self.arrays.table.size * size // nodes + 4 * nodes
            if fits(self.arrays, picks):
                self.factor *= FALL
            else:
                self.factor *= RISE
                sweeps = repair(self.arrays, self.priced, picks, self.weight, MOVED_SWEEPS, self.turn)
                work -= abs(sweeps) * self.sweep_work
                if sweeps < 0:
                    continue
            if whole:
                work -= descend(self.arrays, picks, MOVED_SWEEPS, self.turn) * self.line_work
            self._accept(picks)
        return work

    def _accept(self, picks: IntArray) -> None:
        value = cost_of(self.arrays, picks)
        if value < min(self.value, LEAST_FORBIDDEN) and fits(self.arrays, picks):
            self.value, self.picks = value, picks
