"""Arena: one piece of memory shared by blocks that are never in use together.

What is in use all the time lies at the bottom. The others are placed above it one after the other, each at the lowest
offset where it meets no block placed before that is in use at a time when it is (first fit by decreasing size;
Pisarchyk and Lee 2020, arXiv:2001.03288, section 4). Where that leaves gaps, other orders are tried, and the smallest
arena wins. No arena is smaller than what is in use at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Interval = tuple[int, int]
"""[begin, end)."""


@dataclass(frozen=True, slots=True)
class Span:
    """`nbytes` that are in use during some intervals, which do not overlap."""

    lives: tuple[Interval, ...]
    nbytes: int

    @property
    def length(self) -> int:
        """For how long it is in use."""
        return sum(end - begin for begin, end in self.lives)


def assign_offsets(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Offsets in bytes, in the order of `spans`, and the size of the arena."""
    horizon = _horizon(spans)
    offsets = [0] * len(spans)
    bottom = 0
    for index, span in enumerate(spans):
        if span.length == horizon:
            offsets[index] = bottom
            bottom += span.nbytes
    above = [index for index, span in enumerate(spans) if span.length < horizon]
    found, size = _assign_above([spans[index] for index in above])
    for index, offset in zip(above, found, strict=True):
        offsets[index] = bottom + offset
    return offsets, bottom + size


def _assign_above(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Offsets and size of what is not in use all the time."""
    least = max(usage(spans), default=0)
    meetings = _Meetings(spans)
    best: list[int] = []
    size = math.inf
    for order in _orders(spans):
        offsets = _first_fit(spans, order, meetings)
        needed = max((o + s.nbytes for o, s in zip(offsets, spans, strict=True)), default=0)
        if needed < size:
            best, size = offsets, needed
        if size == least:
            break
    return best, int(size)


def usage(spans: Sequence[Span]) -> list[int]:
    """Bytes in use at every time."""
    change = np.zeros(_horizon(spans) + 1, np.int64)
    for span in spans:
        for begin, end in span.lives:
            change[begin] += span.nbytes
            change[end] -= span.nbytes
    return [int(nbytes) for nbytes in np.cumsum(change)]


def _horizon(spans: Sequence[Span]) -> int:
    return max((span.lives[-1][1] for span in spans), default=0)


def _orders(spans: Sequence[Span]) -> Iterator[list[int]]:
    """Largest first; what is in use longest first; what takes most bytes for longest first; by time."""
    numbers = range(len(spans))
    yield sorted(numbers, key=lambda i: (-spans[i].nbytes, -spans[i].length, i))
    yield sorted(numbers, key=lambda i: (-spans[i].length, -spans[i].nbytes, i))
    yield sorted(numbers, key=lambda i: (-spans[i].length * spans[i].nbytes, i))
    yield sorted(numbers, key=lambda i: (spans[i].lives[0][0], -spans[i].nbytes, i))


class _Meetings:
    """Which spans are in use at once; worked out for a span when it is placed first, and kept as bits."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._horizon = _horizon(spans)
        self._owners = np.array([i for i, span in enumerate(spans) for _ in span.lives], np.int64)
        self._begins = np.array([begin for span in spans for begin, _ in span.lives], np.int64)
        self._ends = np.array([end for span in spans for _, end in span.lives], np.int64)
        self._bits: dict[int, npt.NDArray[np.uint8]] = {}

    def of(self, index: int) -> npt.NDArray[np.bool_]:
        """By span: whether it is in use when the one at `index` is."""
        known = self._bits.get(index)
        if known is not None:
            return np.unpackbits(known, count=len(self._spans)).view(np.bool_)
        used_before = np.zeros(self._horizon + 1, np.int64)
        for begin, end in self._spans[index].lives:
            used_before[begin + 1 : end + 1] = 1
        used_before = used_before.cumsum()
        found = np.zeros(len(self._spans), np.bool_)
        found[self._owners[used_before[self._ends] > used_before[self._begins]]] = True
        self._bits[index] = np.packbits(found)
        return found


def _first_fit(spans: Sequence[Span], order: Sequence[int], meetings: _Meetings) -> list[int]:
    nbytes = np.array([span.nbytes for span in spans], np.int64)
    offsets = np.zeros(len(spans), np.int64)
    placed = np.zeros(len(spans), np.bool_)
    for index in order:
        (rivals,) = (meetings.of(index) & placed).nonzero()
        offsets[index] = _lowest_gap(offsets[rivals], nbytes[rivals], spans[index].nbytes)
        placed[index] = True
    return [int(offset) for offset in offsets]


def _lowest_gap(offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64], wanted: int) -> int:
    """The lowest offset with `wanted` bytes before the next block, or the end of all blocks."""
    if not len(offsets):
        return 0
    order = offsets.argsort(kind="stable")
    begins = offsets[order]
    free_from = np.maximum.accumulate(begins + nbytes[order])
    if begins[0] >= wanted:
        return 0
    fits = begins[1:] - free_from[:-1] >= wanted
    first = int(fits.argmax()) if len(fits) else 0
    return int(free_from[first] if len(fits) and fits[first] else free_from[-1])
