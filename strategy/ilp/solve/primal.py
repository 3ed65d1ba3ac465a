"""The search for cheaper choices of one core: repaired decodes, then exact moves of forests and descent."""

from __future__ import annotations

import numpy as np

from strategy.ilp.solve.core import FloatArray, IntArray
from strategy.ilp.solve.descent import descend, repair
from strategy.ilp.solve.evaluate import cost_of, fits
from strategy.ilp.solve.forest import improve_forest, region_of
from strategy.ilp.solve.packed_arrays import LEGAL, Flat
from strategy.ilp.solve.trws import price

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


class Primal:
    """The cheapest legal choice known of a core's arrays, and how to better it; deterministic in the work done."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.picks: IntArray | None = None
        self.value = np.inf
        self.weight = 1.0
        self.factor = 1.0
        self.turn = 0
        self.priced = flat.cost.copy()
        # Entries that a sweep of descent and one of repair read.
        sizes = np.diff(flat.first)
        self.line_work = int(flat.cost.size + sizes[flat.tail].sum() + sizes[flat.head].sum())
        self.sweep_work = self.line_work + int((flat.span_last - flat.span_first).sum())

    def consider(self, candidate: IntArray, prices: FloatArray, scale: float) -> int:
        """Takes a choice, repaired if need be; `scale` is the magnitude of costs. Returns the entries read."""
        self.weight = scale / max(float(self.flat.room.mean()), 1.0) if self.flat.room.size else 1.0
        self.turn += 1
        picks = candidate.copy()
        price(self.flat, prices, self.priced)
        sweeps = repair(self.flat, self.priced, picks, self.weight, DECODED_SWEEPS, self.turn)
        work = abs(sweeps) * self.sweep_work
        if sweeps > 0:
            work += descend(self.flat, picks, DECODED_SWEEPS, self.turn) * self.line_work
            self._take(picks)
        return work

    def improve(self, prices: FloatArray, work: int) -> int:
        """Moves from the best choice until so many entries are read; returns what is overdrawn, as <= 0."""
        if self.picks is None:
            return min(work, 0)
        nodes = self.picks.size
        while work > 0:
            if self.turn % REPRICED == 0:
                price(self.flat, prices * self.factor, self.priced)
            self.turn += 1
            whole = self.turn % WHOLE_EVERY == 0
            size = nodes if whole else min(REGION_NODES, nodes)
            picks = self.picks.copy()
            improve_forest(self.flat, self.priced, picks, region_of(self.flat, size, self.turn))
            work -= self.flat.table.size * size // nodes + 4 * nodes
            if fits(self.flat, picks):
                self.factor *= FALL
            else:
                self.factor *= RISE
                sweeps = repair(self.flat, self.priced, picks, self.weight, MOVED_SWEEPS, self.turn)
                work -= abs(sweeps) * self.sweep_work
                if sweeps < 0:
                    continue
            if whole:
                work -= descend(self.flat, picks, MOVED_SWEEPS, self.turn) * self.line_work
            self._take(picks)
        return work

    def _take(self, picks: IntArray) -> None:
        value = cost_of(self.flat, picks)
        if value < min(self.value, LEGAL) and fits(self.flat, picks):
            self.value, self.picks = value, picks
