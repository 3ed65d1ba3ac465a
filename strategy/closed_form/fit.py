"""Fit: constants from measurements, by robust least squares on log ratios, held by their priors.

The objective is the sum over measurements of weight x loss(log predicted - log measured) plus, per constant,
((log value - log prior) / spread)^2; the loss is quadratic up to a threshold and linear beyond (soft L1), so that a run
with a slow node does not decide. Weights give every family the same say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from strategy.closed_form.constants import Constant

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Model = Callable[[dict[str, float]], Floats]
"""Constants -> predictions, one per measurement."""

_STEP = 1e-3
_ENOUGH = 1e-4
"""Share of what is minimised that a round has to gain for there to be another one."""
_LEAST_DAMPED, _MOST_DAMPED = 1e-3, 1e9


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted values, the half-width of their 90 % intervals on the log scale, and the weighted residual."""

    values: Mapping[str, float]
    half_widths: Mapping[str, float]
    cost: float


def fit(
    model: Model, measured: Floats, weights: Floats, declared: Sequence[Constant], *, threshold: float = 0.08,
    noise: float = 0.06, start: Mapping[str, float] | None = None, rounds: int = 30, touched: Mask | None = None,
) -> Fit:  # fmt: skip
    """Constants that predict the measurements. `weights` are counts; `threshold` and `noise`, log ratios.

    `touched` says which constants (rows) move which predictions (columns); all do, where it is not given.
    """
    names = [constant.name for constant in declared]
    prior = np.log([constant.prior for constant in declared])
    spread = np.array([constant.spread for constant in declared])
    begin = prior if start is None else np.log([start[name] for name in names])
    scale = np.sqrt(weights) / noise

    def residuals(point: Floats) -> Floats:
        values = dict(zip(names, np.exp(point).tolist(), strict=True))
        ratio = np.log(model(values) / measured)
        size = np.abs(ratio) / threshold
        # soft L1 as a residual: its square is the loss
        bent = np.sign(ratio) * threshold * np.sqrt(2 * (np.sqrt(1 + size**2) - 1))
        return np.concatenate([scale * bent, (point - prior) / spread])

    moves = np.ones((len(names), len(measured)), dtype=bool) if touched is None else touched
    own = np.hstack([moves, np.eye(len(names), dtype=bool)]).T
    groups = _apart(moves)

    def slopes(point: Floats) -> Floats:
        base = residuals(point)
        columns = np.zeros((len(base), len(point)))
        for group in groups:
            moved = point.copy()
            moved[group] += _STEP
            change = (residuals(moved) - base) / _STEP
            columns[:, group] = np.where(own[:, group], change[:, None], 0.0)
        return columns

    point, slope, cost = _least_squares(residuals, slopes, begin, rounds)
    covariance = np.linalg.pinv(_products(slope, slope))
    half = 1.645 * np.sqrt(np.maximum(np.diag(covariance), 0))
    return Fit(
        MappingProxyType(dict(zip(names, np.exp(point).tolist(), strict=True))),
        MappingProxyType(dict(zip(names, half.tolist(), strict=True))),
        cost,
    )


def _apart(touched: Mask) -> list[list[int]]:
    """Places of constants in groups that move no prediction in common, so that one step tells the slopes of all.

    Greedy, those that move most first (Curtis, Powell and Reid, 1974).
    """
    groups: list[list[int]] = []
    taken: list[Mask] = []
    for place in np.argsort(-touched.sum(axis=1), kind="stable").tolist():
        free = (number for number, mine in enumerate(taken) if not (mine & touched[place]).any())
        number = next(free, len(groups))
        if number == len(groups):
            groups.append([])
            taken.append(np.zeros(touched.shape[1], dtype=bool))
        groups[number].append(place)
        taken[number] |= touched[place]
    return groups


def _least_squares(
    residuals: Callable[[Floats], Floats], slopes: Callable[[Floats], Floats], begin: Floats, rounds: int
) -> tuple[Floats, Floats, float]:
    """Where half the sum of squares is least, the slopes there, and that half (Levenberg, 1944; Marquardt, 1963).

    By normal equations, which the priors keep well conditioned: noise in the last digit stays there, and no product is
    large enough for a library to share it out over threads, whose number would change the last digit.
    """
    point, here, slope, damping = begin, residuals(begin), slopes(begin), 0.0
    cost = 0.5 * float(np.sum(here**2))
    for _ in range(rounds):
        normal, downhill = _products(slope, slope), -_products(slope, here[:, None])[:, 0]
        while damping < _MOST_DAMPED:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
            there = residuals(point + step)
            if (found := 0.5 * float(np.sum(there**2))) <= cost:
                break
            damping = max(10 * damping, _LEAST_DAMPED)
        else:
            break
        gained, cost, point, here = cost - found, found, point + step, there
        slope, damping = slopes(point), damping / 10
        if gained <= _ENOUGH * cost:
            break
    return point, slope, cost


def _products(a: Floats, b: Floats) -> Floats:
    """Products of all columns of `a` with those of `b`, by one thread."""
    return np.asarray(np.einsum("ij,ik->jk", a, b), dtype=float)
