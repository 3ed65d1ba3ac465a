"""Inequality: what every choice of layouts is known to take and hold, as a weighted sum of a point's coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strategy.bounds.point import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Inequality:
    """weights @ point >= least, of nanoseconds and bytes.

    Attributes:
        weights: (SIZE,), >= 0.
        least: of the sum.
    """

    weights: FloatArray
    least: float

    @property
    def small_bits(self) -> int:
        """By so many bits the largest weight is below one; none if it is not."""
        return max(0, -math.frexp(float(self.weights.max()))[1])

    def with_bits(self, bits: int) -> tuple[list[int], int]:
        """The same or less, in whole units of 2^-`bits`: weights are rounded up and the sum down."""
        scaled = np.ceil(np.ldexp(self.weights, bits))
        return [int(weight) for weight in scaled], int(np.floor(np.ldexp(self.least, bits)))
