"""Draws: random numbers that are a function of the element, not of the rank that draws it.

Every element's number follows from (seed, number of the draw, its coordinates in the logical tensor), so that every
layout of a tensor holds the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategy.graph.splitmix import counter_steps, mix
from strategy.sbp.tensor import Box, box_shape


def uniform(seed: int, draw: int, box: Box) -> NDArray[np.float64]:
    """One number in (0, 1] per element of the piece `box`."""
    mantissas = (_words(seed, draw, box) >> np.uint64(11)).astype(np.float64)
    return np.asarray((mantissas + 1.0) * 2.0**-53)


def normal(seed: int, draw: int, box: Box) -> NDArray[np.float64]:
    """One standard normal number per element of `box` (Box and Muller 1958, doi:10.1214/aoms/1177706645)."""
    radius = np.sqrt(-2.0 * np.log(uniform(seed, 2 * draw, box)))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform(seed, 2 * draw + 1, box)))


def _words(seed: int, draw: int, box: Box) -> NDArray[np.uint64]:
    """64 random bits per element: a round of splitmix64 for the draw and one for every coordinate."""
    words: NDArray[np.uint64] = np.full(1, seed % 2**64, np.uint64)
    mix(words, words.copy(), np)
    for begin, end in ((draw, draw + 1), *box):
        words = words[..., None] + counter_steps(begin, end, np)
        mix(words, np.empty_like(words), np)
    return words.reshape(box_shape(box))
