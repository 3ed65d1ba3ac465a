"""Rows of float32 as machine code: what NumPy does in many passes, in one or two over a row that the first cache holds.

Exponentials are a polynomial, so that loops of them run on vectors (Cody and Waite 1980, "Software Manual for the
Elementary Functions", chapter 6, with the coefficients of Moshier's Cephes): within 2 units in the last place of
float32. Sums of a row may be taken in any order, which the code fixes: the same row gives the same bits in every act,
whatever rows lie beside it.

Matrices are [rows, width], statistics [rows]; arrays lie flat and do not overlap, unless a kernel says that it may
write over what it reads. `machine_coded` decides which acts come here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from strategy.base.ahead_of_time import ObjectFile, ObjectFunction
from strategy.base.entries import Indices, Matrix, Vector

T = TypeVar("T")

OBJECT_FILE = ObjectFile(__file__, "kernels of rows")

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_LOG2_E = np.float32(math.log2(math.e))
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
_P5, _P4, _P3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P2, _P1, _P0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_BIAS, _EXPONENT_STEP = np.float32(127.0), np.float32(2.0**23)
_LEAST, _MOST = np.float32(-87.3), np.float32(88.3)
"""Of exponents whose power, and whose power's reciprocal, are normal numbers of float32."""
_INFINITE = np.float32(np.inf)
_HIDDEN = np.float32(-1e30)
"""As in `heads`."""
_GELU_LINEAR = np.float32(-2.0 * math.sqrt(2.0 / math.pi))
_GELU_CUBIC = np.float32(-2.0 * math.sqrt(2.0 / math.pi) * 0.044715)
_THREE = np.float32(3.0)

ROWS_AT_ONCE = 64
"""Whose sum is taken by itself, so that sums over many rows lose little."""


def _by_element(function: Callable[..., T]) -> ObjectFunction[..., T]:
    return OBJECT_FILE.function(function, fastmath={"contract"})


def _by_row(function: Callable[..., T]) -> ObjectFunction[..., T]:
    return OBJECT_FILE.function(function, fastmath={"contract", "reassoc", "nsz"})


def _ordered(function: Callable[..., T]) -> ObjectFunction[..., T]:
    return OBJECT_FILE.function(function, fastmath={"nnan", "nsz"})


@_by_element
def _power(x: np.float32) -> np.float32:
    """e^x for x in [_LEAST, _MOST], and at its ends beyond; NaN of NaN."""
    x = x if not (x < _LEAST) else _LEAST
    x = x if not (x > _MOST) else _MOST
    twos = np.floor(x * _LOG2_E + _HALF)
    rest = x - twos * _LN2_HIGH
    rest = rest - twos * _LN2_LOW
    series = _P5 * rest + _P4
    series = series * rest + _P3
    series = series * rest + _P2
    series = series * rest + _P1
    series = series * rest + _P0
    series = series * (rest * rest) + rest + _ONE
    found: np.float32 = series * np.int32((twos + _BIAS) * _EXPONENT_STEP).view(np.float32)
    return found


@_by_element
def _exp(x: np.float32) -> np.float32:
    """e^x; zero where that is less than normal numbers are, infinite where it is beyond e^_MOST."""
    found = _power(x)
    found = found if not (x < _LEAST) else _ZERO
    return found if not (x > _MOST) else _INFINITE


@_by_element
def exp(x: Vector, y: Vector) -> None:
    """e^x as all kernels here take it."""
    for at in range(x.size):
        y[at] = _exp(x[at])


@_by_element
def gelu(x: Vector, y: Vector) -> None:
    """x / (1 + e^-2u), where u = sqrt(2/pi) (x + 0.044715 x^3): half of x (1 + tanh(u))."""
    for at in range(x.size):
        u = x[at] * (x[at] * x[at] * _GELU_CUBIC + _GELU_LINEAR)
        y[at] = x[at] / (_ONE + _power(u))


@_by_element
def gelu_slope(grad: Vector, x: Vector, out: Vector) -> None:
    """dy s (1 + 2 x u' (1 - s)) with s = 1 / (1 + e^-2u), so that y = x s."""
    for at in range(x.size):
        square = x[at] * x[at]
        power = _power(x[at] * (square * _GELU_CUBIC + _GELU_LINEAR))
        share = _ONE / (_ONE + power)
        turn = x[at] * (square * (_THREE * _GELU_CUBIC) + _GELU_LINEAR)  # -2 x u'
        out[at] = grad[at] * share * (_ONE - turn * (power * share))


@_by_element
def silu(x: Vector, y: Vector) -> None:
    """x / (1 + e^-x)."""
    for at in range(x.size):
        y[at] = x[at] / (_ONE + _power(-x[at]))


@_by_element
def silu_slope(grad: Vector, x: Vector, out: Vector) -> None:
    """dy s (1 + x (1 - s)) with s = 1 / (1 + e^-x)."""
    for at in range(x.size):
        power = _power(-x[at])
        share = _ONE / (_ONE + power)
        out[at] = grad[at] * share * (_ONE + x[at] * (power * share))


@_by_element
def swiglu(gate: Vector, up: Vector, y: Vector) -> None:
    """silu(gate) up."""
    for at in range(gate.size):
        y[at] = gate[at] / (_ONE + _power(-gate[at])) * up[at]


@_by_element
def swiglu_slope(grad: Vector, gate: Vector, up: Vector, dgate: Vector, dup: Vector) -> None:
    """dgate = dy up s (1 + gate (1 - s)); dup = dy gate s."""
    for at in range(gate.size):
        power = _power(-gate[at])
        share = _ONE / (_ONE + power)
        dup[at] = grad[at] * gate[at] * share
        dgate[at] = grad[at] * up[at] * share * (_ONE + gate[at] * (power * share))


@_by_element
def adam(
    grad: Vector,
    param: Vector,
    m: Vector,
    v: Vector,
    factor: np.float32,
    decay: np.float32,
    kept: np.float32,
    beta1: np.float32,
    fresh1: np.float32,
    beta2: np.float32,
    fresh2: np.float32,
    root: np.float32,
    epsilon: np.float32,
    rate: np.float32,
) -> None:
    """One update of Adam by g = factor grad + decay param; param is multiplied by `kept` first.

    `fresh1` is 1 - beta1, `root` is 1 / sqrt(1 - beta2^t), and `rate` is the learning rate / (1 - beta1^t).
    """
    for at in range(param.size):
        g = grad[at] * factor + param[at] * decay
        m[at] = m[at] * beta1 + g * fresh1
        v[at] = v[at] * beta2 + g * g * fresh2
        param[at] = param[at] * kept - rate * (m[at] / (np.sqrt(v[at]) * root + epsilon))


@_by_row
def layer_norm(
    x: Matrix, gain: Vector, bias: Vector, epsilon: np.float32, y: Matrix, mean: Vector, rstd: Vector
) -> None:
    """(x - mean) rstd gain + bias, row by row."""
    rows, width = x.shape
    share = _ONE / np.float32(width)
    for row in range(rows):
        total = _ZERO
        for at in range(width):
            total += x[row, at]
        middle = total * share
        squares = _ZERO
        for at in range(width):
            squares += (x[row, at] - middle) * (x[row, at] - middle)
        scale = _ONE / np.sqrt(squares * share + epsilon)
        mean[row], rstd[row] = middle, scale
        for at in range(width):
            y[row, at] = (x[row, at] - middle) * scale * gain[at] + bias[at]


@_by_row
def layer_norm_grad(
    x: Matrix,
    gain: Vector,
    mean: Vector,
    rstd: Vector,
    dy: Matrix,
    dx: Matrix,
    dgain: Vector,
    dbias: Vector,
    part: Matrix,
) -> None:
    """With h = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - h mean(g h)); `part` is scratch [2, width]."""
    rows, width = x.shape
    share = _ONE / np.float32(width)
    for at in range(width):
        dgain[at] = dbias[at] = _ZERO
    for first in range(0, rows, ROWS_AT_ONCE):
        for at in range(width):
            part[0, at] = part[1, at] = _ZERO
        for row in range(first, min(first + ROWS_AT_ONCE, rows)):
            middle, scale = mean[row], rstd[row]
            g_total, gh_total = _ZERO, _ZERO
            for at in range(width):
                h = (x[row, at] - middle) * scale
                g_total += dy[row, at] * gain[at]
                gh_total += dy[row, at] * gain[at] * h
                part[0, at] += dy[row, at] * h
                part[1, at] += dy[row, at]
            g_mean, gh_mean = g_total * share, gh_total * share
            for at in range(width):
                h = (x[row, at] - middle) * scale
                dx[row, at] = scale * (dy[row, at] * gain[at] - g_mean - h * gh_mean)
        for at in range(width):
            dgain[at] += part[0, at]
            dbias[at] += part[1, at]


@_by_row
def rms_norm(x: Matrix, gain: Vector, epsilon: np.float32, y: Matrix, rstd: Vector) -> None:
    """x rstd gain, row by row."""
    rows, width = x.shape
    share = _ONE / np.float32(width)
    for row in range(rows):
        squares = _ZERO
        for at in range(width):
            squares += x[row, at] * x[row, at]
        scale = _ONE / np.sqrt(squares * share + epsilon)
        rstd[row] = scale
        for at in range(width):
            y[row, at] = x[row, at] * scale * gain[at]


@_by_row
def rms_norm_grad(x: Matrix, gain: Vector, rstd: Vector, dy: Matrix, dx: Matrix, dgain: Vector, part: Vector) -> None:
    """With h = x rstd and g = dy gain: dx = rstd (g - h mean(g h)); `part` is scratch [width]."""
    rows, width = x.shape
    share = _ONE / np.float32(width)
    for at in range(width):
        dgain[at] = _ZERO
    for first in range(0, rows, ROWS_AT_ONCE):
        for at in range(width):
            part[at] = _ZERO
        for row in range(first, min(first + ROWS_AT_ONCE, rows)):
            scale = rstd[row]
            gh_total = _ZERO
            for at in range(width):
                h = x[row, at] * scale
                gh_total += dy[row, at] * gain[at] * h
                part[at] += dy[row, at] * h
            gh_mean = gh_total * share
            for at in range(width):
                dx[row, at] = scale * (dy[row, at] * gain[at] - x[row, at] * scale * gh_mean)
        for at in range(width):
            dgain[at] += part[at]


@_by_row
def sum_exp(x: Matrix, top: Vector, out: Vector) -> None:
    """The sum of e^(x - top) of every row."""
    rows, width = x.shape
    for row in range(rows):
        total = _ZERO
        for at in range(width):
            total += _exp(x[row, at] - top[row])
        out[row] = total


@_by_element
def exp_rows(x: Matrix, top: Vector, factor: Vector, less: np.float32, y: Matrix, apart: bool) -> None:
    """factor e^(x - top) - less; unless they lie `apart`, y is written over x."""
    rows, width = x.shape
    for row in range(rows):
        shift, scale = top[row], factor[row]
        if apart:
            for at in range(width):
                y[row, at] = x[row, at]
        for at in range(width):
            y[row, at] = _exp(y[row, at] - shift) * scale - less


@_ordered
def _largest(x: Vector) -> np.float32:
    """Of x, which is not empty; any, if there is a NaN."""
    found: np.float32 = x[0]
    for at in range(x.size):
        found = x[at] if x[at] > found else found
    return found


@_by_row
def weigh_rows(
    scores: Matrix, scale: np.float32, queries: int, ahead: int, window: int, total: Vector, top: Vector
) -> None:
    """The soft-max, e^(scale score - top) / total, of what a query sees, zero elsewhere.

    `top` is the largest scaled score of a row. Row r is of query r % queries, which sees the keys up to `ahead` + that,
    and of these the last `window`; all where that is 0. Where it sees none, all are far below zero alike.
    """
    rows, keys = scores.shape
    for row in range(rows):
        high = min(ahead + row % queries + 1, keys)
        low = max(ahead + row % queries + 1 - window, 0) if window else 0
        if low >= high:
            for at in range(keys):
                scores[row, at] = _ONE / np.float32(keys)
            total[row], top[row] = np.float32(keys), _HIDDEN
            continue
        seen = scores[row, low:high]
        for at in range(seen.size):  # apart from what follows: a product that is not rounded differs from the largest
            seen[at] *= scale
        largest = _largest(seen)
        for at in range(low):
            scores[row, at] = _ZERO
        found = _ZERO
        for at in range(seen.size):
            weight = _exp(seen[at] - largest)
            seen[at] = weight
            found += weight
        share = _ONE / found
        for at in range(seen.size):
            seen[at] *= share
        for at in range(high, keys):
            scores[row, at] = _ZERO
        total[row], top[row] = found, largest


@_by_element
def weigh_rows_again(
    scores: Matrix,
    slopes: Matrix,
    scale: np.float32,
    slope_scale: np.float32,
    queries: int,
    ahead: int,
    window: int,
    lse: Vector,
    delta: Vector,
) -> None:
    """The soft-max, e^(scale score - lse), of what a query sees, zero elsewhere.

    Slopes become slope_scale (slope - delta) times these.
    """
    rows, keys = scores.shape
    for row in range(rows):
        high = max(min(ahead + row % queries + 1, keys), 0)
        low = min(max(ahead + row % queries + 1 - window, 0) if window else 0, high)
        shift, middle = lse[row], delta[row]
        for at in range(low):
            scores[row, at] = slopes[row, at] = _ZERO
        seen, turned = scores[row, low:high], slopes[row, low:high]
        for at in range(seen.size):
            seen[at] *= scale
        for at in range(seen.size):
            weight = _exp(seen[at] - shift)
            seen[at] = weight
            turned[at] = (turned[at] - middle) * (weight * slope_scale)
        for at in range(high, keys):
            scores[row, at] = slopes[row, at] = _ZERO


@_by_element
def turn_rows(x: Matrix, straight: Matrix, across: Matrix, y: Matrix) -> None:
    """x straight + swapped(x) across, where the halves of a row are swapped; turns repeat. y may lie where x does."""
    rows, width = x.shape
    turns, half = straight.shape[0], width // 2
    for row in range(rows):
        turn = row % turns
        for at in range(half):
            first, second = x[row, at], x[row, half + at]
            y[row, at] = first * straight[turn, at] + second * across[turn, at]
            y[row, half + at] = second * straight[turn, half + at] + first * across[turn, half + at]


@_by_element
def add_rows(terms: Matrix, places: Indices, target: Matrix) -> None:
    """target[place] += term, in the order of the terms; terms of places outside are left out."""
    rows, width = target.shape
    for term in range(places.size):
        row = places[term]
        if 0 <= row < rows:
            for at in range(width):
                target[row, at] += terms[term, at]
