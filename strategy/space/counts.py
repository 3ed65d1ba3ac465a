"""Counts: what cells count for each of many weights, most of it nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from strategy.ilp.problem import FORBIDDEN

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Some cells.

    Attributes:
        numbers: (cells, weights), nothing where a cell is forbidden.
        forbidden: (cells,) which are.
    """

    numbers: csr_array
    forbidden: npt.NDArray[np.bool_]

    @staticmethod
    def of(parts: Sequence[IntArray], weights: int) -> Counts:
        """Of (cells, weights) each; forbidden is what costs as much by the first weight."""
        wide = np.concatenate([*parts, np.zeros((0, weights), np.int64)])
        forbidden = wide[:, 0] >= FORBIDDEN
        wide[forbidden] = 0
        places = np.flatnonzero(wide)
        begins = np.searchsorted(places, np.arange(len(wide) + 1) * weights)
        return Counts(csr_array((wide.ravel()[places], places % weights, begins), shape=wide.shape), forbidden)

    def weighed(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(cells,) of so much for each; what is forbidden is nothing."""
        found: npt.NDArray[np.float64] = self.numbers @ weights
        return found

    def total(self, cells: IntArray) -> IntArray:
        """(weights,) of some cells together, each as often as it is named."""
        often = np.bincount(cells, minlength=len(self.forbidden))
        found: IntArray = often @ self.numbers
        return found
