"""Memory errors: how much more a run held than was predicted of it, of runs that the fit had not seen.

As of step times (`interval.py`): errors over the scale of their framework have one distribution for all runs, in which
every source has the same say; a scale is a mean error, drawn towards that of all runs where its groups are few. A
framework of which no run's memory was measured takes the errors of runs whose whole source the fit had not seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategy.closed_form.interval import Residual, drawn_scale
from strategy.closed_form.products import Floats

PERCENTS = 100
LEAST, MOST = 0.5, 0.99
"""Probabilities that can be asked for: below, memory would be lent; above, there are too few runs to tell."""


@dataclass(frozen=True, slots=True)
class MemoryErrors:
    """Errors of predicted memory, as logarithms of what was measured over what was predicted.

    Attributes:
        runs: how many were measured.
        scales: framework -> mean error of its runs.
        near: percentiles 0 to 100 of errors over scale, by fits without a run's group.
        far: percentiles 0 to 100 of errors, by fits without its source.
    """

    runs: int
    scales: Mapping[str, float]
    near: tuple[float, ...]
    far: tuple[float, ...]

    def margin(self, framework: str, probability: float) -> float:
        """What has to be there over what is predicted, at least 1, for memory to suffice with a probability."""
        return math.exp(max(0.0, float(np.interp(PERCENTS * probability, range(PERCENTS + 1), self._of(framework)))))

    def probability(self, framework: str, spare: float) -> float:
        """That memory suffices which is so many times what is predicted: in whole percents, none beyond `MOST`."""
        if spare <= 0:
            return 0.0
        reached = int(np.searchsorted(self._of(framework), math.log(spare) + 1e-12, side="right")) - 1
        return min(max(reached, 0) / PERCENTS, MOST)

    def _of(self, framework: str) -> Floats:
        if framework in self.scales:
            return self.scales[framework] * np.array(self.near)
        return np.array(self.far)


def memory_errors(residuals: Sequence[Residual]) -> MemoryErrors:
    """The errors of runs whose memory was measured; of a residual `near` and `far` are predicted over measured."""
    sources = Counter(one.source for one in residuals)
    weights = np.array([1 / sources[one.source] for one in residuals])
    near, far = (-np.array([getattr(one, way) for one in residuals]) for way in ("near", "far"))
    overall = float(np.average(np.abs(near), weights=weights))
    errors: dict[str, dict[Hashable, list[float]]] = {}
    for one, error in zip(residuals, np.abs(near).tolist(), strict=True):
        errors.setdefault(one.job.framework, {}).setdefault(one.group, []).append(error)
    judged = [(one.job.framework, one.group) for one in residuals]
    scales = {key: drawn_scale(key[:1], key[1], errors, overall) for key in set(judged)}
    over_scale = near / np.array([scales[key] for key in judged])
    return MemoryErrors(
        len(residuals),
        {name: drawn_scale((name,), None, errors, overall) for name in sorted(errors)},
        _percentiles(over_scale, weights),
        _percentiles(far, weights),
    )


def _percentiles(values: Floats, weights: Floats) -> tuple[float, ...]:
    """Percentiles 0 to 100 of weighted values, with the correction for a sample of this size."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    wanted = np.minimum(np.arange(PERCENTS + 1) / PERCENTS * (1 + 1 / len(values)), 1.0)
    places = np.minimum(np.searchsorted(reached, wanted - 1e-9), len(values) - 1)
    return tuple(values[order][places].tolist())
