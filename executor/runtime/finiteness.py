"""Finiteness: numbers that are not finite are kept out of the state, and found where they first were written.

All updates share one factor, which comes from the norm of all gradients: it is finite just if they are. So each rank
sees by itself, before its first update, that a step must change nothing; the step can then be run once more from the
state that it began with, and every piece be looked at as it is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from executor.runtime.transport.base import HostArray
from strategy.graph.ops.base import Call
from strategy.program.program import ActKind, Program
from strategy.program.protocol import Act


class HeldUpdates:
    """Updates of one rank that are left out in a step whose factor is not finite; `held` says that this step is one."""

    def __init__(self) -> None:
        self.held = False

    def unless_held(self, act: Callable[[int], None], call: Call) -> Callable[[int], None]:
        """The act of an update: where updates are held, its variables stay, and it writes zeros."""
        scalars = [array for array in call.inputs if isinstance(array, np.ndarray) and array.shape == ()]

        def guarded(number: int) -> None:
            self.held = self.held or not all(math.isfinite(float(scalar)) for scalar in scalars)
            if not self.held:
                act(number)
                return
            for output in call.outputs:
                output[...] = 0

        return guarded


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The act that first wrote a number that is not finite: when (node's monotonic clock), which, and what it wrote."""

    time_ns: int
    actor: int
    number: int
    what: str


class FinitenessProbe:
    """Looks at what the acts of one rank write; `found` is the first that is not finite.

    `read` gives a block of a register as an array of the host.
    """

    def __init__(self, program: Program, read: Callable[[int, int], HostArray]) -> None:
        self.found: NonFinite | None = None
        self._program = program
        self._read = read

    def __call__(self, act: Act) -> None:
        """Look at what an act has written, unless something is found already."""
        actor = self._program.actors[act.actor]
        if self.found is not None or actor.kind is ActKind.SLICE:  # that writes neutral elements, such as -inf
            return
        for port, block in zip(actor.writes, act.write_blocks, strict=True):
            what = _what_is_not_finite(self._read(port.register, block))
            if what:
                self.found = NonFinite(time.perf_counter_ns(), act.actor, act.number, what)
                return


def is_finite(array: np.ndarray) -> bool:
    """Whether all numbers of an array are."""
    return not _what_is_not_finite(array)


def _what_is_not_finite(array: np.ndarray) -> str:
    """`nan` or `inf`, whichever the array holds; empty where all is finite."""
    if array.size == 0 or np.issubdtype(array.dtype, np.integer) or array.dtype == bool:
        return ""
    if np.isfinite(array).all():
        return ""
    return "nan" if np.isnan(array).any() else "inf"
