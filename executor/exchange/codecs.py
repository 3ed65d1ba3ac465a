"""Codecs: how float32 values are made fewer bytes on their way between ranks.

A codec encodes a block of values by itself: its scale goes with it. Values are always added up in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from strategy.base.errors import InputError

Values = NDArray[np.float32]
Encoded = NDArray[np.uint8]
_SCALE_NBYTES = 4
_INT8_MAX = 127


class Codec(Protocol):
    """What a codec does. Equal codecs have equal `repr`s: ranks compare these."""

    @property
    def is_allreducible(self) -> bool:
        """Whether a sum may be encoded again: else every rank's block goes to all, and each rank adds them up."""
        ...

    @property
    def keeps_residual(self) -> bool:
        """Whether what is lost is added to the next values of the same tensor (error feedback)."""
        ...

    def nbytes(self, count: int) -> int:
        """Bytes of a block of `count` values."""
        ...

    def encode(self, values: Values) -> Encoded:
        """The block, of shape [nbytes]."""
        ...

    def decode(self, block: Encoded, count: int) -> Values:
        """The values that a block stands for, of shape [count]."""
        ...


@dataclass(frozen=True, slots=True)
class Float16:
    """IEEE halves, scaled by a power of two so that the largest value comes to lie below 2^15.

    The error of a value is at most 2^-11 of it, or 2^-39 of the largest of its block.
    """

    is_allreducible = True
    keeps_residual = False

    def nbytes(self, count: int) -> int:
        """Two for each value, and the scale."""
        return _SCALE_NBYTES + 2 * count

    def encode(self, values: Values) -> Encoded:
        """Scale, then round."""
        return _scaled(values, np.dtype(np.float16), 15)

    def decode(self, block: Encoded, count: int) -> Values:
        """Widen, then scale back."""
        return _unscaled(block, np.dtype(np.float16), count)


@dataclass(frozen=True, slots=True)
class BFloat16:
    """Float32 without its lower half, scaled likewise; the error of a value is at most 2^-8 of it."""

    is_allreducible = True
    keeps_residual = False

    def nbytes(self, count: int) -> int:
        """Two for each value, and the scale."""
        return _SCALE_NBYTES + 2 * count

    def encode(self, values: Values) -> Encoded:
        """Scale, then round."""
        return _scaled(values, np.dtype(ml_dtypes.bfloat16), 15)

    def decode(self, block: Encoded, count: int) -> Values:
        """Widen, then scale back."""
        return _unscaled(block, np.dtype(ml_dtypes.bfloat16), count)


@dataclass(frozen=True, slots=True)
class Int8:
    """Whole numbers from -127 to 127 times a scale; the error of a value is at most 1/254 of the block's largest."""

    is_allreducible = True
    keeps_residual = False

    def nbytes(self, count: int) -> int:
        """One for each value, and the scale."""
        return _SCALE_NBYTES + count

    def encode(self, values: Values) -> Encoded:
        """Round to the nearest multiple of the scale; what is not finite makes all of the block no number."""
        largest = float(np.abs(values).max(initial=0.0))
        scale = np.float32(largest / _INT8_MAX)
        rounded = np.zeros(values.shape, np.int8)
        if np.isfinite(largest) and scale > 0:
            rounded = np.clip(np.rint(values / scale), -_INT8_MAX, _INT8_MAX).astype(np.int8)
        elif not np.isfinite(largest):
            scale = np.float32(np.nan)
        return np.concatenate([_bytes(np.array([scale])), _bytes(rounded)])

    def decode(self, block: Encoded, count: int) -> Values:
        """Multiply."""
        scale = block[:_SCALE_NBYTES].view(np.float32)[0]
        values: Values = block[_SCALE_NBYTES : _SCALE_NBYTES + count].view(np.int8).astype(np.float32)
        values *= scale
        return values


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest values of a block and where they stand; the others wait in the residual.

    Deep gradient compression (Lin et al., 2018, arXiv:1712.01887), without its momentum correction.

    Args:
        share: of the values that are sent, in (0, 1]; one at least.
    """

    share: float = 0.01
    is_allreducible = False
    keeps_residual = True

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError("no share of values", where="TopK.share", got=self.share, expected="above 0, at most 1")

    def _kept(self, count: int) -> int:
        return min(count, max(1, round(self.share * count)))

    def nbytes(self, count: int) -> int:
        """Eight for each value that is kept."""
        return 8 * self._kept(count)

    def encode(self, values: Values) -> Encoded:
        """Keep the largest; of equal ones, and of what is no number, which come first, the leftmost."""
        size = np.where(np.isnan(values), np.inf, np.abs(values))
        kept = np.sort(np.argsort(-size, kind="stable")[: self._kept(values.size)]).astype(np.uint32)
        return np.concatenate([_bytes(kept), _bytes(values[kept])])

    def decode(self, block: Encoded, count: int) -> Values:
        """Zeros but for those kept."""
        half = 4 * self._kept(count)
        values = np.zeros(count, np.float32)
        values[block[:half].view(np.uint32)] = block[half:].view(np.float32)
        return values


def _scaled(values: Values, dtype: np.dtype[np.generic], exponent: int) -> Encoded:
    largest = float(np.abs(values).max(initial=0.0))
    power = exponent - int(np.frexp(largest)[1]) if np.isfinite(largest) and largest > 0 else 0
    power = min(max(power, -120), 120)  # of which float32 has both the scale and its inverse
    scale = np.float32(2.0**power)
    return np.concatenate([_bytes(np.array([scale])), _bytes((values * scale).astype(dtype))])


def _unscaled(block: Encoded, dtype: np.dtype[np.generic], count: int) -> Values:
    scale = block[:_SCALE_NBYTES].view(np.float32)[0]
    values: Values = block[_SCALE_NBYTES : _SCALE_NBYTES + 2 * count].view(dtype).astype(np.float32)
    values /= scale
    return values


def _bytes(array: NDArray[np.generic]) -> Encoded:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
