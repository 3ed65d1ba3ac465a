"""Point: what the first, the middle and the last part of a model take and hold, as one vector.

A choice of layouts is a point; what counts how much in a step is a vector of weights over its coordinates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
PASSES = ("forward_ns", "backward_ns", "weight_ns", "before_ns", "after_ns")
"""The passes of a micro-batch, and what is done once per step; fields of `PipelineTimes`."""
PARTS = 3
TIMES, HELD, SUMS, SAVED = slice(0, 15), slice(15, 18), slice(18, 21), slice(21, 24)
"""Where things are: nanoseconds of `PASSES` x parts; the bytes of each part that are held for the whole step, in sums
of gradients, and saved by a micro-batch from its forward pass to its backward pass."""
MICRO = slice(0, 9)
"""Those of `TIMES` that every micro-batch takes."""
SIZE = 24


def time_at(name: str, part: int) -> int:
    """Where a pass of a part is."""
    return PARTS * PASSES.index(name) + part


def unit(at: int) -> npt.NDArray[np.int64]:
    """(SIZE,): what counts at one coordinate alone."""
    found = np.zeros(SIZE, np.int64)
    found[at] = 1
    return found
