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
        """Of (cells, weights) each; forbidden is what costs as much by the first weight.

        What has no weights, (cells,), costs nothing or is forbidden.
        """
        none = np.zeros(0, np.int64)
        wide = np.concatenate([np.zeros((0, weights), np.int64), *(part for part in parts if part.ndim > 1)])
        narrow = np.concatenate([none, *(part for part in parts if part.ndim == 1)])
        is_wide = np.repeat([part.ndim > 1 for part in parts], [len(part) for part in parts]).astype(np.bool_)
        forbidden = np.empty(len(is_wide), np.bool_)
        forbidden[is_wide], forbidden[~is_wide] = wide[:, 0] >= FORBIDDEN, narrow >= FORBIDDEN
        wide[forbidden[is_wide]] = 0
        places = np.flatnonzero(wide)
        begins = np.searchsorted(places, np.arange(len(wide) + 1) * weights)
        counts = np.zeros(len(is_wide) + 1, np.int64)
        counts[1:][is_wide] = np.diff(begins)
        numbers = csr_array((wide.ravel()[places], places % weights, np.cumsum(counts)), shape=(len(is_wide), weights))
        return Counts(numbers, forbidden)

    def weighed(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(cells,) of so much for each; what is forbidden is nothing."""
        found: npt.NDArray[np.float64] = self.numbers @ weights
        return found

    def total(self, cells: IntArray) -> IntArray:
        """(weights,) of some cells together, each as often as it is named."""
        often = np.bincount(cells, minlength=len(self.forbidden))
        found: IntArray = often @ self.numbers
        return found
