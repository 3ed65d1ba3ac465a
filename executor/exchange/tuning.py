"""Tuning of fusion size and number of streams in the first steps of a training: all ranks make one choice."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from executor.runtime.transport.base import HostArray

Choice = tuple[int, int]
"""Bytes of a bucket, number of streams."""


class FusionTuner:
    """Tries every candidate for some steps; which is tried depends on the number of steps alone, so all try the same.

    Args:
        candidates: what to choose from.
        steps_each: how long each is tried; one step more comes before, which does not count.
    """

    def __init__(self, candidates: Sequence[Choice], steps_each: int) -> None:
        self._candidates = tuple(candidates)
        self._steps_each = steps_each
        self._step_s: list[float] = []

    @property
    def is_through(self) -> bool:
        """Whether every candidate was tried."""
        return len(self._step_s) >= len(self._candidates) * (self._steps_each + 1)

    @property
    def tried(self) -> Choice:
        """What the step under way tries."""
        return self._candidates[min(len(self._step_s) // (self._steps_each + 1), len(self._candidates) - 1)]

    def note(self, step_s: float) -> None:
        """The step with what was tried is over, and took so long here."""
        self._step_s.append(step_s)

    def medians_s(self) -> HostArray:
        """Seconds of a step on this rank, by candidate."""
        each = self._steps_each + 1
        steps = [self._step_s[index * each + 1 : (index + 1) * each] for index in range(len(self._candidates))]
        return np.array([median(found) for found in steps])

    def choose(self, of_ranks: Sequence[HostArray]) -> Choice:
        """The candidate with which the slowest rank is fastest; of equal ones the first."""
        return self._candidates[int(np.argmin(np.max(of_ranks, axis=0)))]
