"""Path mix: in which shares several paths through a step bound it best, by the steps that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategy.layout.step_times import MeanPath, StepTimes

PARTS = 1 << 12
"""Shares of paths that are looked for are whole parts of it."""


def longest_mix(paths: Sequence[MeanPath], known: Sequence[StepTimes]) -> tuple[int, ...]:
    """The shares of the mix under which the shortest of some steps is longest."""
    from scipy.optimize import linprog

    lengths = np.array([[path.length(times) / path.number for path in paths] for times in known])
    scale = float(lengths.max()) or 1.0
    rows = np.column_stack([-lengths / scale, np.ones(len(known))])
    one = np.append(np.ones(len(paths)), 0.0)[None, :]
    found = linprog(
        -np.eye(len(paths) + 1)[-1], rows, np.zeros(len(known)), one, [1.0], bounds=[(0, None)] * len(one.T)
    )
    shares = np.floor(PARTS * found.x[:-1]).astype(np.int64)
    shares[shares.argmax()] += PARTS - shares.sum()
    return tuple(shares.tolist())
