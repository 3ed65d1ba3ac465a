"""Point: what the first, the middle and the last part of a model take and hold, as one vector.

A choice of layouts is a point; what counts how much in a step is a vector of weights over its coordinates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategy.layout.step_times import COPIED, COVERED, OVERLAPPED, WAITED

FloatArray = npt.NDArray[np.float64]
OWN = ("forward_ns", "backward_ns", "weight_ns", "before_ns", "after_ns")
"""The passes of a micro-batch, and what is done once per step: what a stage does itself."""
PASSES = (*OWN, *(OVERLAPPED[name] for name in OWN), *WAITED.values(), *COVERED.values(), *COPIED.values())
"""The same, then what goes on beside each, what micro-batches wait for, what is covered, and what moves between devices
and hosts; fields of `StepTimes`."""
PARTS = 3
TIMES, MESSAGES = slice(0, 51), slice(51, 57)
"""Where nanoseconds are: of `PASSES` x parts, and of what stages hand on to each other."""
NEAR, FAR, TIED = slice(51, 53), slice(53, 55), slice(55, 57)
"""To the next stage and back to that before, for a micro-batch, by how the two lie (`crossings`); and once per step
from the first stage to the last, ahead of all, and back, behind all, where both use a weight (`tied`)."""
HELD, AHEAD, SUMS = slice(57, 60), slice(60, 63), slice(63, 66)
"""Where the bytes of each part are: held for the whole step; until the last forward pass; in sums of gradients."""
SAVED, WAITING, DEFERRED = slice(66, 69), slice(69, 72), slice(72, 75)
"""Those of a micro-batch: saved from its forward pass to its backward pass; from there to its gradients of weights,
which may be a pass of their own; and from the backward pass to these."""
ADDED = slice(75, 78)
"""Deferred like these, but in places of their own: nothing that is saved is overwritten by them."""
MOVED = slice(78, 79)
"""Those of a layer between that are held at any time of backward passes: what is gathered, and what is exchanged."""
AT_HEAD = slice(79, 80)
"""Those of the last part while that forward act runs which reads and writes most there: logits and what they become."""
AT_WORK = slice(80, 81)
"""Those of a layer between while that act of its backward pass runs at which most is there, but for what is moved."""
KINDS_OF_BYTES = (HELD, AHEAD, SUMS, SAVED, WAITING, DEFERRED, ADDED, MOVED, AT_HEAD, AT_WORK)
BYTES, OF_MICRO_BATCH = slice(57, 81), slice(66, 78)
"""All of these, and those that every micro-batch in flight holds."""
MICRO, MICRO_OVERLAPPED, MICRO_WAITED, BACKWARD_COVERED = slice(0, 9), slice(15, 24), slice(30, 39), slice(39, 42)
MICRO_COPIED = slice(42, 51)
"""Those of `TIMES` that every micro-batch takes itself, what goes on beside it, what it waits for, and of its backward
passes what is covered; what moves between devices and hosts."""
PER_MICRO_BATCH = (MICRO, MICRO_OVERLAPPED, MICRO_WAITED, BACKWARD_COVERED, MICRO_COPIED, NEAR, FAR)
"""All of these, and what is handed on: a step takes them as often as it has micro-batches."""
OF_STEP = slice(9, 15)
"""Those that a step takes itself ahead of its first micro-batch, and behind its last."""
SIZE = 81


def time_at(name: str, part: int) -> int:
    """Where a pass of a part is."""
    return PARTS * PASSES.index(name) + part


def unit(at: int) -> npt.NDArray[np.int64]:
    """(SIZE,): what counts at one coordinate alone."""
    found = np.zeros(SIZE, np.int64)
    found[at] = 1
    return found
