"""Buckets: small tensors are fused, large ones are cut, alike on all ranks.

What goes into which bucket follows from the agreed lists alone: a joined rank, which holds none of the tensors, makes
the same buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from executor.exchange.pending import PendingTensor
from executor.exchange.tensors import TensorKey, dtype_called


@dataclass(slots=True, eq=False)
class ListedTensor:
    """A tensor that all ranks have; `tensor` is None where this rank has joined, `step` where it is not registered."""

    key: TensorKey
    tensor: PendingTensor | None
    step: int | None
    fragments_left: int = 1


@dataclass(frozen=True, slots=True)
class Fragment:
    """Elements `begin` to `end` of a tensor."""

    listed: ListedTensor
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FusedBucket:
    """Fragments that are reduced at once, one behind the other.

    `contributors` is the set of ranks whose values count; `key` is the first tensor's, like which all are combined.
    """

    fragments: tuple[Fragment, ...]
    contributors: int

    @property
    def key(self) -> TensorKey:
        """How all of them are combined."""
        return self.fragments[0].listed.key

    @property
    def count(self) -> int:
        """Number of elements."""
        return sum(fragment.end - fragment.begin for fragment in self.fragments)


class Fuser:
    """Fills buckets; `fusion_bytes` may be set anew between two steps."""

    def __init__(self, fusion_bytes: int, fragment_bytes: int) -> None:
        self.fusion_bytes = fusion_bytes
        self._fragment_bytes = fragment_bytes
        self._open: dict[tuple[object, ...], list[Fragment]] = {}

    def add(self, listed: ListedTensor, contributors: int) -> Iterator[FusedBucket]:
        """Take a listed tensor in; gives the buckets that are full."""
        key = listed.key
        itemsize = dtype_called(key.dtype).itemsize
        alike = (key.dtype, key.reduce, key.mean, contributors)
        fragments = fragments_of(listed, self._fragment_bytes)
        listed.fragments_left = len(fragments)
        for fragment in fragments:
            filling = self._open.setdefault(alike, [])
            held = sum(one.end - one.begin for one in filling)
            if filling and (held + fragment.end - fragment.begin) * itemsize > self.fusion_bytes:
                yield FusedBucket(tuple(filling), contributors)
                filling.clear()
                held = 0
            filling.append(fragment)
            if (held + fragment.end - fragment.begin) * itemsize >= self.fusion_bytes:
                yield FusedBucket(tuple(filling), contributors)
                filling.clear()

    def flush(self) -> Iterator[FusedBucket]:
        """The buckets that are not full."""
        filled = [(alike, fragments) for alike, fragments in self._open.items() if fragments]
        self._open = {}
        for alike, fragments in filled:
            contributors = alike[-1]
            assert isinstance(contributors, int)
            yield FusedBucket(tuple(fragments), contributors)


def fragments_of(listed: ListedTensor, fragment_bytes: int) -> list[Fragment]:
    """The parts in which a tensor is sent; one, of nothing, where it has no elements."""
    count = listed.key.count
    most = max(1, fragment_bytes // dtype_called(listed.key.dtype).itemsize)
    return [Fragment(listed, begin, min(begin + most, count)) for begin in range(0, max(count, 1), most)]
