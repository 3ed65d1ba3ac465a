"""Arena: one piece of memory shared by blocks that are never in use together.

What is in use all the time lies at the bottom. The others are placed above it one after the other, each at the lowest
offset where it meets no block placed before that is in use at a time when it is (first fit by decreasing size;
Pisarchyk and Lee 2020, arXiv:2001.03288, section 4). Where that leaves gaps, other orders are tried, and the smallest
arena wins. No arena is smaller than what is in use at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import add

import numpy as np

Interval = tuple[int, int]
"""[begin, end)."""

MANY = 300
"""Spans that are worth a compiler, which takes longer to load than fewer take to be placed."""


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
    nbytes = [span.nbytes for span in spans]
    first = [0, *accumulate(len(span.lives) for span in spans)]
    begins, ends = ([life[side] for span in spans for life in span.lives] for side in (0, 1))
    best: list[int] = []
    size = math.inf
    for order in _orders(spans):
        offsets = _offsets(order, nbytes, first, begins, ends)
        needed = max(map(add, offsets, nbytes), default=0)
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


def _offsets(
    order: Sequence[int], nbytes: Sequence[int], first: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> list[int]:
    """Where `_first_fit` places spans, whose figures it takes as arrays where it is compiled."""
    offsets, placed = [0] * len(order), [0] * len(order)
    if len(order) < MANY:
        _first_fit(order, nbytes, first, begins, ends, offsets, placed)
        return offsets
    arrays = [np.array(figures, np.int64) for figures in (order, nbytes, first, begins, ends, offsets, placed)]
    _compiled_first_fit()(*arrays)
    found: list[int] = arrays[-2].tolist()
    return found


@lru_cache
def _compiled_first_fit() -> Callable[..., None]:
    from strategy.base.compiled import in_place

    return in_place(_first_fit)


def _first_fit(
    order: Sequence[int],
    nbytes: Sequence[int],
    first: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    offsets: list[int],
    placed: list[int],
) -> None:
    """Place spans in turn, each at the lowest offset where it meets none that is there; `placed` is kept by offset.

    Span i is in use from `begins` to `ends` at each of `first[i]` to `first[i + 1]`.
    """
    for count in range(len(order)):
        index = order[count]
        offset = 0
        for k in range(count):
            other = placed[k]
            if offsets[other] - offset >= nbytes[index]:
                break
            if offsets[other] + nbytes[other] <= offset:
                continue
            i, j = first[index], first[other]
            while i < first[index + 1] and j < first[other + 1]:
                if ends[i] <= begins[j]:
                    i += 1
                elif ends[j] <= begins[i]:
                    j += 1
                else:
                    offset = offsets[other] + nbytes[other]
                    break
        offsets[index] = offset
        place = count
        while place and offsets[placed[place - 1]] > offset:
            placed[place] = placed[place - 1]
            place -= 1
        placed[place] = index
