"""Bootstrap: how sure figures of noisy samples are (Efron 1979)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

RESAMPLES = 400


def half_widths_of(draw: Callable[[random.Random], Mapping[str, float]]) -> dict[str, float]:
    """Half of the central 95 % of each figure; `draw` gives the figures of samples that are drawn anew."""
    rng = random.Random(0)
    drawn: dict[str, list[float]] = {}
    for _ in range(RESAMPLES):
        for name, value in draw(rng).items():
            drawn.setdefault(name, []).append(value)
    last = RESAMPLES - 1
    ordered = {name: sorted(values) for name, values in drawn.items()}
    return {name: (values[round(0.975 * last)] - values[round(0.025 * last)]) / 2 for name, values in ordered.items()}
