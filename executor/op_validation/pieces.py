"""Pieces: an array cut over a mesh by its layout, and put together again.

Written axis after axis, without the boxes of `strategy.sbp.sbp`, so that it can judge them. Pieces are listed in
row-major mesh order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.runtime.neutral import neutral_element
from strategy.sbp.sbp import Broadcast, NdSbp, Owner, Partial, Reduce, Split
from strategy.sbp.tensor import Shape

Array = npt.NDArray[Any]

TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 8e-3, "bfloat16": 6e-2}
"""Largest error, relative to the largest element, by dtype."""
FLOOR = 1e-3
"""Where all elements are smaller, errors are measured against this: terms of partial tensors are of the order of 1."""
_NEUTRAL_SHARE = 0.25
_LACKING_SHARE = 0.3


def cut(array: Array, nd_sbp: NdSbp, mesh: Shape, rng: np.random.Generator, *, ragged: bool = False) -> list[Array]:
    """The piece of every rank; the terms of a partial tensor are random and differ from rank to rank.

    Of a `ragged` tensor, written out, terms have none but its rows, and lack some of those.
    """
    if not mesh:
        return [array.copy()]
    sbp, parts = nd_sbp[0], mesh[0]
    match sbp:
        case Split(dim) as split:
            pieces = split.of(np.array_split(array, parts, axis=dim))
        case Broadcast():
            pieces = [array] * parts
        case Owner(coordinate):
            pieces = [array if rank == coordinate else array[(slice(0),) * array.ndim] for rank in range(parts)]
        case Partial(reduce):
            pieces = _terms(array, reduce, parts, rng, ragged=ragged)
    return [piece for part in pieces for piece in cut(part, nd_sbp[1:], mesh[1:], rng, ragged=ragged)]


def _terms(array: Array, reduce: Reduce, parts: int, rng: np.random.Generator, *, ragged: bool) -> list[Array]:
    """Arrays that reduce to `array`. For max and min some are the neutral element, as boxing from B makes them."""
    if reduce is Reduce.SUM:
        if not np.issubdtype(array.dtype, np.integer):
            terms = [rng.standard_normal(array.shape).astype(array.dtype) for _ in range(parts - 1)]
            if ragged:
                there = (array != 0).any(axis=-1, keepdims=True)
                terms = [term * (there & (rng.random(there.shape) > _LACKING_SHARE)) for term in terms]
        else:
            terms = [rng.integers(-9, 10, array.shape, array.dtype) for _ in range(parts - 1)]
        return [*terms, np.asarray(array - sum(terms))]
    sign = -1 if reduce is Reduce.MAX else 1
    neutral = neutral_element(array.dtype, reduce)
    winner = rng.integers(0, parts, array.shape)
    found = []
    for part in range(parts):
        away = (
            rng.uniform(0.5, 2.0, array.shape)
            if not np.issubdtype(array.dtype, np.integer)
            else rng.integers(1, 9, array.shape)
        )
        far = (rng.random(array.shape) < _NEUTRAL_SHARE) | (array == neutral)
        loser = np.where(far, neutral, np.where(far, 0, array) + sign * away)
        found.append(np.where(winner == part, array, loser).astype(array.dtype))
    return found


def join(pieces: Sequence[Array], nd_sbp: NdSbp, mesh: Shape) -> Array:
    """The logical tensor.

    Raises:
        ValueError: copies differ, or pieces do not fit together.
    """
    if not mesh:
        (piece,) = pieces
        return piece
    stride = math.prod(mesh[1:])
    parts = [join(pieces[i * stride : (i + 1) * stride], nd_sbp[1:], mesh[1:]) for i in range(mesh[0])]
    match nd_sbp[0]:
        case Split(dim, shift):
            return np.concatenate([parts[(i - shift) % len(parts)] for i in range(len(parts))], axis=dim)
        case Broadcast():
            if not all(close(part, parts[0]) for part in parts):
                raise ValueError("copies differ")
            return parts[0]
        case Owner(coordinate):
            return parts[coordinate]
        case Partial(reduce):
            if len({part.shape for part in parts}) > 1:
                raise ValueError("terms have different shapes")
            combine = {Reduce.SUM: np.add, Reduce.MAX: np.maximum, Reduce.MIN: np.minimum}[reduce]
            total = parts[0]
            for part in parts[1:]:
                total = combine(total, part)
            return np.asarray(total)


def close(found: Array, wanted: Array) -> bool:
    """Whether two arrays are equal up to the rounding of another order of summation; NaN equals nothing."""
    return error_of(found, wanted) <= TOLERANCE.get(str(wanted.dtype), 0.0)


def error_of(found: Array, wanted: Array) -> float:
    """Largest difference relative to the largest finite element of `wanted`; infinite where shapes differ."""
    if found.shape != wanted.shape:
        return math.inf
    differs = np.asarray(found != wanted)
    if not differs.any():
        return 0.0
    if np.issubdtype(wanted.dtype, np.integer):
        return math.inf
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.max(np.abs(found[differs] - wanted[differs])))
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = max(float(finite.max()) if finite.size else 0.0, FLOOR)
    return error / largest if math.isfinite(error) else math.inf
