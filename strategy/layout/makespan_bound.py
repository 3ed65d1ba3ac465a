"""A lower bound on the makespan over every way of spreading given totals over the stages of a pipeline.

Totals, over all stages and laps: F, B and W of one micro-batch forward, backward and for the gradients of weights, U of
what is done once per step; t = f + b + w of a stage, T = F + B + W; p stages, m micro-batches. Messages take no time.

The makespan is the longest path through the schedule's chunks. So it is at least any convex combination of paths, and
where every stage's time has the coefficient c or more in that, it is at least c times the total, however it is spread:
each bound below is such a combination, and the largest is taken. Stages are numbered from 0; s is the one that a path
stays on, w_s its weight.

Every schedule: a path stays on s from its first chunk to its last, equal weights: (m T + U) / p. The first micro-batch
there and back: F + B, and W where weight gradients are part of the backward pass.

GPipe: to s, its m forwards, to the last stage, back to r, its m backwards, back to the first. Equal weights on s and,
apart from that, on r: (m + p - 1) / p T. Equal stages take exactly that.

1F1B, m > p: there and back beyond s with the first micro-batch and with the last one, and on s between them:

    T + sum_{j >= s} t_j + (m - p + s - 1) t_s

With n = m - p and w_0 = (m - 1) / (p n), w_s = (m - 1) (n - 1) / (p (n + s - 1) (n + s)), which sum up to 1, every t_j
has (m + p - 1) / p. Equal stages take exactly that.
With U: begin and end on s, there and back beyond s at the beginning and at the end, and, between them, back to the
first stage and there again (a backward, on to the forward that follows it on the first stage) once or twice. Beyond s
that gives t_j twice for p - 1 - s times t_s; before s, t_j once for s times t_s. Half of the paths with one way back
and half with two, which m > 2 p has room for, equal weights: ((m + (p - 1) / 2) T + U) / p. One way back in all, and
beyond s in two thirds of them, m > p: ((m + (p - 1) / 3) T + U) / p.

1F1B, m <= p: the last m - 1 stages are a pipeline of their own, with the above weights and the coefficient 1 + 1. Each
of the others, q = p - m + 1, does its m forwards, or its m backwards, in a row: T + (m - 1) f_s, T + (m - 1) b_s. With
a on the former, and the rest on the latter in equal parts: T + (m - 1) / (2 p - m + 1) T, or, with forwards or
backwards alone, T + (m - 1) / p F and T + (m - 1) / p B. Linear programs over all paths find no more.

OneFlow: m t_s + sum_{j < s} t_j, since the first micro-batch comes and the last one leaves through the stages before
s. w_s proportional to (1 - 1 / m)^(p - 1 - s) gives every t_j the same: T / (1 - (1 - 1 / m)^p).

Interleaved, v laps: let a(s, l) be when the first forward of lap l begins on s. Before it there are, of s, the p
forwards of each lap before, f_{s,<l}, and no backward; and a(s, l) is at least sum_{j < s} f_{j,l} after a(0, l), which
is at least sum_j f_{j,k} after a(0, k) with k = l - 1, once around. The same holds of backwards from the end. So in the
mean over l, on each side, with X_s the mean of f_{s,<l} over l:

    makespan >= m t_s + (1 / v) sum_{j < s} t_j + sum_j X_j - p X_s

X vanishes from the sum over s. With the same weight A for each s, and m t_s by itself with B_s = A s / (v m), where
p A + sum_s B_s = 1, every t_j has A (m + (p - 1) / v): (m / p) (m + (p - 1) / v) / (m + (p - 1) / (2 v)) T.

ZB-H1: forwards and backwards are in the order of 1F1B, so that F and B alone have its bound; for m > p, m - p weight
gradients of s lie on its path, with its smallest weight, the last: (m - p) (m - p - 1) / (p (m - 2)) W more.
For m >= p also Q_s: to s, with the first micro-batch there and back beyond s, and all else on s; and P_s: to s, and all
of s. Equal weights of both: ((m + (p - 1) / 2) F + m (B + W)) / p. With P_s going back to the first stage with the last
micro-batch, which leaves s + 1 weight gradients of s out: ((m + (p - 1) / 2) (F + B) + (m - p / 2) W) / p.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError
from strategy.layout.schedule import Schedule

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
ROUNDING = 2.0**-40
"""By this part every bound is lowered: far more than its floats err by."""


def makespan_bound_ns(
    schedule: Schedule,
    stages: npt.ArrayLike,
    num_micro_batches: npt.ArrayLike,
    laps: npt.ArrayLike = 1,
    *,
    forward_ns: npt.ArrayLike,
    backward_ns: npt.ArrayLike,
    weight_ns: npt.ArrayLike = 0,
    step_ns: npt.ArrayLike = 0,
    more_ns: npt.ArrayLike = 0,
) -> IntArray:
    """No makespan is less, rounded down; of arrays of configurations, which are broadcast against each other.

    Args:
        schedule: of all of them.
        stages: of each pipeline.
        num_micro_batches: of a step.
        laps: runs of layers on each stage, which only interleaved has a choice of.
        forward_ns: F, of one micro-batch over all stages and laps.
        backward_ns: B, without the gradients of weights.
        weight_ns: W.
        step_ns: U, before the first and after the last chunks, over all stages.
        more_ns: of one micro-batch besides, nobody knows in which of its passes: it has the least coefficient of them.

    Raises:
        InputError: no stages, micro-batches or laps, or a negative time.
    """
    given = (stages, num_micro_batches, laps, forward_ns, backward_ns, weight_ns, step_ns, more_ns)
    names = ("stages", "num_micro_batches", "laps", "forward_ns", "backward_ns", "weight_ns", "step_ns", "more_ns")
    for name, least, each in zip(names, (1, 1, 1, 0, 0, 0, 0, 0), given, strict=True):
        array = np.asarray(each)
        if array.size and array.min() < least:
            raise InputError("too small", where=name, got=array.min().item(), expected=f">= {least}")
    p, m, v, f, b, w, u, more = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in given))
    t = f + b + w + more
    found = [(m * t + u) / p, f + b if schedule.splits_backward else t]
    if schedule is Schedule.GPIPE:
        found.append((m + p - 1) / p * t)
    elif schedule is Schedule.ONE_F_ONE_B:
        found += [_one_f_one_b(p, m, f, b + w, more), _with_step(p, m, t, u)]
    elif schedule is Schedule.ONEFLOW:
        with np.errstate(divide="ignore"):  # one micro-batch: the logarithm of 0
            found.append(t / -np.expm1(p * np.log1p(-1 / m)))
    elif schedule is Schedule.INTERLEAVED:
        found.append(m / p * (m + (p - 1) / v) / (m + (p - 1) / (2 * v)) * t)
    elif schedule is Schedule.ZB_H1:
        found += _zb_h1(p, m, f, b, w + more)
    bound: FloatArray = np.floor(np.maximum.reduce(found) * (1 - ROUNDING))
    return bound.astype(np.int64)


def _one_f_one_b(p: FloatArray, m: FloatArray, f: FloatArray, b: FloatArray, more: FloatArray) -> FloatArray:
    """Without U."""
    t = f + b + more
    few = np.maximum.reduce([(m - 1) / p * f, (m - 1) / p * b, (m - 1) / np.maximum(2 * p - m + 1, 1) * t])
    return t + np.where(m > p, (m - 1) / p * t, few)


def _with_step(p: FloatArray, m: FloatArray, t: FloatArray, u: FloatArray) -> FloatArray:
    """With U, under 1F1B."""
    ways = np.where(m > 2 * p, (p - 1) / 2, np.where(m > p, (p - 1) / 3, 0))
    more: FloatArray = ((m + ways) * t + u) / p
    return more


def _zb_h1(p: FloatArray, m: FloatArray, f: FloatArray, b: FloatArray, w: FloatArray) -> list[Any]:
    """Without U."""
    beside = np.where(m > p, (m - p) * (m - p - 1) / (p * np.maximum(m - 2, 1)), 0)
    half = m + (p - 1) / 2
    enough = m >= p
    return [
        _one_f_one_b(p, m, f, b, np.zeros_like(f)) + beside * w,
        np.where(enough, (half * f + m * (b + w)) / p, 0),
        np.where(enough, (half * (f + b) + (m - p / 2) * w) / p, 0),
    ]
