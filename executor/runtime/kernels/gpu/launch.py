"""A launch: one kernel over a grid of blocks, as a value. What runs it is the device, or a stand-in for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from executor.runtime.kernels.gpu.program import BLOCK, PACK_NBYTES
from strategy.graph.ops.base import Array
from strategy.sbp.tensor import DType, Shape

_MOST_BLOCKS = 8192
"""Of a kernel whose threads go over the elements in strides: enough that a device's last blocks are a small part."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """A struct of `room` device pointers, by value; null where there is no array."""

    arrays: tuple[Array | None, ...]
    room: int


Argument = Array | np.generic | Addresses | None
"""An array of the device, passed by its address; a NumPy scalar, passed by value; addresses; a null pointer."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: its name in the sources.
        element: the element type of the program that it is taken from.
        grid: blocks along x, y, z; every block has `BLOCK` threads.
        arguments: in the order of the kernel's parameters.
        by_number: those that follow from the number of the act: where they stand, and what they then are.
    """

    kernel: str
    element: DType
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    by_number: tuple[tuple[int, Callable[[int], np.generic]], ...] = ()


def struct(values: ArrayLike) -> np.void:
    """A struct of 64-bit integers, passed by value."""
    return np.void(np.asarray(values, np.int64).tobytes())


def blocks_for(count: int, each: int = BLOCK) -> int:
    """Blocks that take `each` of so many."""
    return -(-count // each)


def per_row(rows: int) -> tuple[int, int, int]:
    """The grid of a block per row."""
    return (rows, 1, 1)


def in_strides(count: int, element: DType) -> tuple[int, int, int]:
    """The grid of threads that go over `count` elements, a vector at a time."""
    return at_most(blocks_for(count, BLOCK * PACK_NBYTES // element.nbytes))


def at_most(blocks: int) -> tuple[int, int, int]:
    """The grid of so many blocks, or of fewer, which go over their work in strides."""
    return (min(blocks, _MOST_BLOCKS), 1, 1)


def rows_and_width(shape: Shape) -> tuple[int, int]:
    """[..., d] as [rows, d]."""
    return math.prod(shape[:-1]), shape[-1]


def element_of(array: Array) -> DType:
    """The element type of an array."""
    return DType(str(array.dtype))


def address_of(array: Array) -> int:
    """Where an array begins in its device's memory."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def wide(arrays: Sequence[Array | None], width: int = 0, nbytes: int = PACK_NBYTES) -> np.int32:
    """1 if arrays, and rows of `width` elements in them, lie at multiples of a vector load's bytes; else 0."""
    given = [array for array in arrays if array is not None]
    aligned = all(address_of(array) % nbytes == 0 for array in given)
    return np.int32(aligned and width * min(array.dtype.itemsize for array in given) % nbytes == 0)
