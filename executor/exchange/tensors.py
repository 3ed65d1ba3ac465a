"""Tensors as the ranks call them: what must be alike on all of them, and the numbers that stand for it in bits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from executor.runtime.transport.base import HostArray
from strategy.base.errors import InputError
from strategy.sbp.sbp import Reduce


class CollectiveKind(StrEnum):
    """What is done with a tensor when all ranks have it."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True, order=True)
class TensorKey:
    """What all ranks must say alike of a tensor.

    Attributes:
        name: unique among the tensors under way.
        collective: what is done with it.
        dtype: by NumPy's name.
        shape: whole; of an all-gather without its first dim, in which ranks may differ.
        reduce: how an all-reduce combines.
        mean: whether a sum is divided by the number of ranks that gave something.
        root: whose values a broadcast sends.
    """

    name: str
    collective: CollectiveKind
    dtype: str
    shape: tuple[int, ...]
    reduce: Reduce = Reduce.SUM
    mean: bool = False
    root: int = 0

    def __str__(self) -> str:
        how = {
            CollectiveKind.ALL_REDUCE: "mean" if self.mean else str(self.reduce),
            CollectiveKind.ALL_GATHER: "all-gather",
            CollectiveKind.BROADCAST: f"broadcast from rank {self.root}",
        }[self.collective]
        return f"{how} of {self.dtype}{list(self.shape)}"

    @property
    def count(self) -> int:
        """Number of elements (of one row, for an all-gather)."""
        return int(np.prod(self.shape, dtype=np.int64))


def dtype_called(text: str) -> np.dtype[np.generic]:
    """The NumPy dtype of a key."""
    return np.dtype(getattr(ml_dtypes, text)) if text == "bfloat16" else np.dtype(text)


def checked_array(name: str, array: HostArray, *, written: bool) -> HostArray:
    """An array that can be moved as flat memory.

    Raises:
        InputError: it has gaps, cannot be written, or holds objects.
    """
    where = f"tensor {name!r}"
    if not isinstance(array, np.ndarray):
        raise InputError("not an array", where=where, got=type(array).__name__, expected="a NumPy array")
    if array.dtype.hasobject:
        raise InputError("holds objects", where=where, got=str(array.dtype), expected="numbers")
    if not array.flags.c_contiguous:
        raise InputError("is not contiguous", where=where, hint="pass np.ascontiguousarray(...), or the whole array")
    if written and not array.flags.writeable:
        raise InputError("cannot be written, and the result is put in its place", where=where)
    return array


def check_combination(name: str, dtype: DTypeLike, *, mean: bool) -> None:
    """Refuse a mean of whole numbers, which is none.

    Raises:
        InputError: it is asked for.
    """
    if mean and np.dtype(dtype).kind in "iub":
        raise InputError(
            "the mean of whole numbers is no whole number",
            where=f"tensor {name!r}",
            got=str(np.dtype(dtype)),
            hint="ask for the sum, or pass floats",
        )


def keys_to_bytes(keys: Iterable[TensorKey]) -> bytes:
    """Keys as a JSON document."""
    rows = [[k.name, k.collective, k.dtype, list(k.shape), k.reduce.value, k.mean, k.root] for k in keys]
    return json.dumps(rows).encode()


def keys_from_bytes(raw: bytes) -> list[TensorKey]:
    """The keys of a document."""
    return [
        TensorKey(name, CollectiveKind(kind), dtype, tuple(shape), Reduce(reduce), mean, root)
        for name, kind, dtype, shape, reduce, mean, root in json.loads(raw)
    ]


class KeyTable:
    """The number of every key that ranks have told one another of; equal on all ranks, change by change."""

    def __init__(self) -> None:
        self._keys: list[TensorKey | None] = []
        self._numbers: dict[TensorKey, int] = {}

    def __len__(self) -> int:
        """How many bits a set of tensors takes."""
        return len(self._keys)

    def __contains__(self, key: TensorKey) -> bool:
        return key in self._numbers

    def add(self, keys: Iterable[TensorKey]) -> None:
        """Give the unknown ones numbers, by their order; numbers that are free again come first."""
        free = [number for number, key in enumerate(self._keys) if key is None]
        for key in sorted(set(keys) - self._numbers.keys()):
            if free:
                number = free.pop(0)
                self._keys[number] = key
            else:
                number = len(self._keys)
                self._keys.append(key)
            self._numbers[key] = number

    def drop(self, key: TensorKey) -> None:
        """Free the number of a key."""
        self._keys[self._numbers.pop(key)] = None

    def bits(self, keys: Iterable[TensorKey]) -> int:
        """The set of those keys that have numbers."""
        found = 0
        for key in keys:
            if key in self._numbers:
                found |= 1 << self._numbers[key]
        return found

    def keys(self, bits: int) -> list[TensorKey]:
        """The keys of a set, by their numbers."""
        found = []
        while bits:
            lowest = bits & -bits
            key = self._keys[lowest.bit_length() - 1]
            if key is not None:
                found.append(key)
            bits ^= lowest
        return found


def mismatches(keys: Iterable[TensorKey]) -> Mapping[str, list[TensorKey]]:
    """Name -> its keys, where ranks mean different things by one name."""
    by_name: dict[str, list[TensorKey]] = {}
    for key in keys:
        by_name.setdefault(key.name, []).append(key)
    return {name: found for name, found in by_name.items() if len(found) > 1}
