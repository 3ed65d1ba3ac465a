"""What is known of a tensor before it exists: its logical shape and its dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from strategy.errors import InputError

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""A rectangular piece of a tensor: [begin, end) along every dim, in logical indices."""


class DType(StrEnum):
    """Element types, by NumPy's names; bfloat16 is of the package ml_dtypes."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def nbytes(self) -> int:
        """Bytes per element."""
        return 2 if self.is_half else 8 if self in (DType.FLOAT64, DType.INT64) else 4

    @property
    def is_float(self) -> bool:
        """Whether sums of it may be partial."""
        return self in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)

    @property
    def is_half(self) -> bool:
        """Whether it has 16 bits: ops compute on it in single precision and round their results."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def wide(self) -> DType:
        """What sums and statistics of it are kept in: float32 for halves, else itself."""
        return DType.FLOAT32 if self.is_half else self

    @property
    def numpy(self) -> np.dtype[Any]:
        """As NumPy has it."""
        if self is DType.BFLOAT16:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return found
        return np.dtype(str(self))


class Rate(StrEnum):
    """How often a new piece of a value appears."""

    STEP = "step"
    MICRO_BATCH = "micro_batch"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Logical (global) shape and dtype of one tensor."""

    shape: Shape
    dtype: DType = DType.FLOAT32

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise InputError("a tensor dim is empty", got=self.shape, expected="every dim >= 1")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.size * self.dtype.nbytes


def box_shape(box: Box) -> Shape:
    """Shape of the piece that `box` cuts out."""
    return tuple(end - begin for begin, end in box)


def is_empty(box: Box) -> bool:
    """Whether a piece holds nothing; a scalar is always held."""
    return any(begin == end for begin, end in box)


def intersect(one: Box, other: Box) -> Box | None:
    """The part that two boxes share; None where they do not meet."""
    shared = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        begin, end = a if a > c else c, b if b < d else d
        if begin >= end:
            return None
        shared.append((begin, end))
    return tuple(shared)


def within(box: Box, frame: Box) -> tuple[slice, ...]:
    """Index that cuts `box` out of the array that holds `frame`; both in logical indices."""
    return tuple(slice(b - origin, e - origin) for (b, e), (origin, _) in zip(box, frame, strict=True))
