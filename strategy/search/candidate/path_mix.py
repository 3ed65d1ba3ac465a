"""Path mix: the mean of several paths through a step, in any shares: linear in these, and a bound on the step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from strategy.layout.step_times import ARRAYS, MeanPath, StepTimes, no_times

PARTS = 1 << 12
"""Shares of paths that are looked for are whole parts of it."""


def mixed(paths: Sequence[MeanPath], shares: Sequence[int]) -> MeanPath:
    """The mean of some paths, each as often as its share says."""
    common, first = math.lcm(*(path.number for path in paths)), paths[0].counts
    total = no_times(first.stages, first.laps)
    for share, path in zip(shares, paths, strict=True):
        for name in ARRAYS:
            total[name] += share * (common // path.number) * getattr(path.counts, name)
    return MeanPath(StepTimes(**total, overlap=first.overlap), sum(shares) * common)


def longest_mix(paths: Sequence[MeanPath], known: Sequence[StepTimes]) -> MeanPath:
    """The mix under which the shortest of some steps is longest."""
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
    return mixed(paths, shares.tolist())
