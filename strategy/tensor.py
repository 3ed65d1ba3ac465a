"""What is known of a tensor before it exists: its logical shape and its dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from strategy.errors import InputError

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""A rectangular piece of a tensor: [begin, end) along every dim, in logical indices."""


class DType(StrEnum):
    """Element types, by NumPy's names."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def nbytes(self) -> int:
        """Bytes per element."""
        return 8 if self in (DType.FLOAT64, DType.INT64) else 4

    @property
    def is_float(self) -> bool:
        """Whether sums of it may be partial."""
        return self in (DType.FLOAT32, DType.FLOAT64)


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
