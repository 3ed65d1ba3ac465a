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
TIMES, MESSAGES = slice(0, 15), slice(15, 17)
"""Where nanoseconds are: of `PASSES` x parts, and of what is handed on to the next stage and back to that before."""
HELD, SUMS, SAVED, WAITING, DEFERRED = slice(17, 20), slice(20, 23), slice(23, 26), slice(26, 29), slice(29, 32)
"""Where the bytes of each part are: held for the whole step; in sums of gradients; saved by a micro-batch from its
forward pass to its backward pass; from there to its gradients of weights, which may be a pass of their own; and from
the backward pass to these."""
BYTES, OF_MICRO_BATCH = slice(17, 32), slice(23, 32)
"""All of them, and those that every micro-batch in flight holds."""
MICRO = slice(0, 9)
"""Those of `TIMES` that every micro-batch takes."""
SIZE = 32


def time_at(name: str, part: int) -> int:
    """Where a pass of a part is."""
    return PARTS * PASSES.index(name) + part


def unit(at: int) -> npt.NDArray[np.int64]:
    """(SIZE,): what counts at one coordinate alone."""
    found = np.zeros(SIZE, np.int64)
    found[at] = 1
    return found
