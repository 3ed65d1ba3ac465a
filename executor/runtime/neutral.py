"""Neutral elements: what changes nothing under a reduction."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from strategy.sbp.sbp import Reduce


def neutral_element(dtype: npt.DTypeLike, reduce: Reduce) -> float | int:
    """Zero for sums; for max and min the least and the greatest figure of a dtype."""
    if reduce is Reduce.SUM:
        return 0
    if not np.issubdtype(dtype, np.integer):
        return -math.inf if reduce is Reduce.MAX else math.inf
    limits = np.iinfo(np.dtype(dtype))
    return int(limits.min if reduce is Reduce.MAX else limits.max)
