"""Sizes drawn at random, and what grows in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strategy.kernels.precision import Floats

DRAWS = 2000


def drawn(seed: int, *ends: tuple[float, float]) -> list[Floats]:
    """One array of whole sizes for each pair of ends, even on a log scale."""
    random = np.random.default_rng(seed)
    return [np.round(np.exp(random.uniform(np.log(low), np.log(high), DRAWS))) for low, high in ends]


def grows(seconds: Callable[..., Floats], sizes: list[Floats], at: int, seed: int) -> bool:
    """Whether no draw is faster when size `at` is larger, by one, by a little or by much."""
    random = np.random.default_rng(seed)
    more = [size.copy() for size in sizes]
    step = np.where(random.random(DRAWS) < 0.5, 1.0, np.ceil(sizes[at] * random.random(DRAWS)))
    more[at] = more[at] + step
    before, after = seconds(*sizes), seconds(*more)
    return bool((before > 0).all() and (after >= before * (1 - 1e-12)).all())
