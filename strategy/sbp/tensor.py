"""What is known of a tensor before it exists: its logical shape and its dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from strategy.base.errors import InputError, InternalError

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""A rectangular piece of a tensor: [begin, end) along every dim, in logical indices."""


class DType(StrEnum):
    """Element types, by NumPy's names; bfloat16 and those of 8 bits are of the package ml_dtypes.

    Two codes of 4 bits are one entry, a byte, the first of the two in its lower half: the last dim of a tensor is half
    as long as what it stands for.
    """

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT8_E4M3 = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E8M0 = "float8_e8m0fnu"
    FLOAT4_E2M1_X2 = "float4_e2m1fn_x2"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def nbytes(self) -> int:
        """Bytes per element."""
        return NBYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether sums of it may be partial."""
        return self in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)

    @property
    def is_half(self) -> bool:
        """Whether it has 16 bits: ops compute on it in single precision and round their results."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_code(self) -> bool:
        """Whether it has 8 bits or 4, and means something beside a scale, or is one: no sums, extremes or gradient."""
        return self in LARGEST_CODE or self is DType.FLOAT8_E8M0

    @property
    def packed(self) -> int:
        """How many elements an entry holds."""
        return 2 if self is DType.FLOAT4_E2M1_X2 else 1

    @property
    def wide(self) -> DType:
        """What sums and statistics of it are kept in: float32 for halves, else itself."""
        return DType.FLOAT32 if self.is_half else self

    @property
    def numpy(self) -> np.dtype[Any]:
        """As NumPy has it."""
        if self is DType.FLOAT4_E2M1_X2:
            return np.dtype("uint8")
        if self is DType.BFLOAT16 or self.is_code:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(self)))
            return found
        return np.dtype(str(self))


LARGEST_CODE = {DType.FLOAT8_E4M3: 448.0, DType.FLOAT8_E5M2: 57344.0, DType.FLOAT4_E2M1_X2: 6.0}
"""The largest finite figure of 8 bits (Micikevicius et al. 2022, arXiv:2209.05433, table 1) and of 4 (Open Compute
Project, "Microscaling formats (MX) specification" 1.0, section 5.3.3)."""
NBYTES = {
    DType.FLOAT8_E4M3: 1,
    DType.FLOAT8_E5M2: 1,
    DType.FLOAT8_E8M0: 1,
    DType.FLOAT4_E2M1_X2: 1,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.INT32: 4,
    DType.INT64: 8,
}
"""Bytes per entry: an element, or two of 4 bits."""


class Rate(StrEnum):
    """How often a new piece of a value appears."""

    STEP = "step"
    MICRO_BATCH = "micro_batch"


INDEX_NBYTES = 8
"""Of a figure that says how many rows there are, or which."""
LEAST_ROOM = 1024
"""Rows that a piece of experts holds at least, if so many can come: a demand of few tokens is uneven by chance."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """How many rows of a tensor [experts, *tokens, width] there may be: of every token at most some.

    Attributes:
        most: experts per token at most.
        dims: logical sizes of all dims but the width, in which rows are numbered; a piece has those of the whole.
        imbalance: rows of the busiest group of experts over those of an even demand, as prices assume it.
        room: rows that a piece has memory for over those of an even demand; 0 is memory for the worst case.
    """

    most: int
    dims: Shape
    imbalance: float = 1.0
    room: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.most <= self.dims[0]:
            raise InputError("no number of experts per token", got=self.most, expected=f"1 to {self.dims[0]}")
        if not self.imbalance >= 1:
            raise InputError("no imbalance", got=self.imbalance, expected="a factor >= 1")
        if self.room != 0 and not self.room >= self.imbalance:
            raise InputError("no room for experts", got=self.room, expected=f"0, or at least {self.imbalance}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Logical (global) shape and dtype of one tensor; of a ragged one, which of its rows there are is data."""

    shape: Shape
    dtype: DType = DType.FLOAT32
    ragged: Ragged | None = None

    def __hash__(self) -> int:
        """Of what tells most of them apart: they are asked for all the time."""
        return hash(self.shape)

    def __post_init__(self) -> None:
        if self.shape and min(self.shape) < 1:
            raise InputError("a tensor dim is empty", got=self.shape, expected="every dim >= 1")
        if self.ragged is not None and len(self.shape) != len(self.ragged.dims) + 1:
            raise InputError(
                "a ragged tensor has other dims than its rows",
                got=self.shape,
                expected=f"{self.ragged.dims} and a width",
            )

    @property
    def size(self) -> int:
        """Number of elements; of a ragged tensor, were all rows there."""
        return math.prod(self.shape)

    @property
    def elements(self) -> Shape:
        """Its shape in elements, where an entry holds several."""
        return self.shape if self.dtype.packed == 1 else (*self.shape[:-1], self.shape[-1] * self.dtype.packed)

    @property
    def nbytes(self) -> int:
        """Bytes that hold the tensor; of a ragged one as many rows as it has room for, their number and places."""
        if self.ragged is None:
            return self.size * self.dtype.nbytes
        return INDEX_NBYTES + self.most_rows * self.row_nbytes

    def piece(self, shape: Shape) -> TensorSpec:
        """The spec of a piece of this shape."""
        return TensorSpec(shape, self.dtype, self.ragged)

    @property
    def rows(self) -> Ragged:
        """What is known of the rows of a ragged tensor.

        Raises:
            InternalError: all rows are there.
        """
        if self.ragged is None:
            raise InternalError(f"{self.dtype}{self.shape} is not ragged")
        return self.ragged

    @property
    def most_rows(self) -> int:
        """Of a ragged tensor: rows that there is room for.

        In the worst case every token chose experts that are all in the piece; `room` may allow for less.
        """
        worst = min(self.rows.most, self.shape[0]) * math.prod(self.shape[1:-1])
        if not self.rows.room:
            return worst
        return min(worst, max(LEAST_ROOM, math.ceil(self._even_rows * self.rows.room)))

    @property
    def expected_rows(self) -> int:
        """Of a ragged tensor: rows if the demand is as uneven as `imbalance` says."""
        skew = self.rows.imbalance if self.shape[0] < self.rows.dims[0] else 1.0
        return min(math.ceil(self._even_rows * skew), self.most_rows)

    @property
    def _even_rows(self) -> float:
        """Rows of a piece if all experts are chosen alike."""
        return self.rows.most * self.shape[0] * math.prod(self.shape[1:-1]) / self.rows.dims[0]

    @property
    def row_nbytes(self) -> int:
        """Of a ragged tensor: bytes of one row and its place."""
        return INDEX_NBYTES + self.shape[-1] * self.dtype.nbytes

    @property
    def expected(self) -> TensorSpec:
        """What an op is priced by: the tensor itself, or as many rows of a ragged one as are expected."""
        return self if self.ragged is None else TensorSpec((self.expected_rows, self.shape[-1]), self.dtype)

    def sent_nbytes(self, size: int) -> int:
        """Bytes that are expected to be sent for a part of so many elements."""
        if self.ragged is None:
            return size * self.dtype.nbytes
        share = self.ragged.most * self.ragged.imbalance / self.ragged.dims[0]
        return math.ceil(size / self.shape[-1] * min(share, 1.0) * self.row_nbytes)


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
