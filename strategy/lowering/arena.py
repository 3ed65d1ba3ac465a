"""Arena: one piece of memory shared by blocks that are never in use together.

What is in use all the time lies at the bottom. The others are placed above it one after the other, each at the lowest
offset where it meets no block placed before that is in use at a time when it is (first fit by decreasing size;
Pisarchyk and Lee 2020, arXiv:2001.03288, section 4). Where that leaves gaps, other orders are tried, and the smallest
arena wins. No arena is smaller than what is in use at once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategy.base.compiled import in_place

Integers = NDArray[np.int64]

Row = Integers | list[int]
"""Arrays for compiled code, lists for the interpreter."""

Lives = Integers
"""When something is in use: rows [begin, end), in order, which do not overlap."""

PAIRS_PER_TURN = 250
"""Pairs of intervals that take the interpreter about as long as one turn of other loops (see `compiled`)."""

ENDLESS = 2**62
"""No arena is so large."""

WORD = 32
"""Spans per word of a set of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """`nbytes` that are in use during some intervals, at least one."""

    lives: Lives
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Spans as arrays: span i is in use from `begins` to `ends` at each of `first[i]` to `first[i + 1]`."""

    nbytes: Integers
    first: Integers
    begins: Integers
    ends: Integers

    @staticmethod
    def of(spans: Sequence[Span]) -> _Spans:
        """The arrays of some spans."""
        every = [span.lives for span in spans]
        lives = np.concatenate(every) if every else np.zeros((0, 2), np.int64)
        first = np.concatenate(([0], np.cumsum([len(one) for one in every], dtype=np.int64)))
        nbytes = np.array([span.nbytes for span in spans], np.int64)
        return _Spans(nbytes, first, np.ascontiguousarray(lives[:, 0]), np.ascontiguousarray(lives[:, 1]))

    @property
    def horizon(self) -> int:
        """When the last is no longer in use."""
        return int(self.ends.max(initial=0))

    @property
    def lengths(self) -> Integers:
        """For how long each is in use."""
        return _sums(self.ends - self.begins, self.first)

    def most_beside(self) -> Integers:
        """The most bytes in use at any time when each is."""
        return np.maximum.reduceat(_most_between(self.usage(), self.begins, self.ends), self.first[:-1])

    @property
    def owners(self) -> Integers:
        """The span of every interval."""
        return np.repeat(np.arange(len(self.nbytes)), np.diff(self.first))

    def usage(self) -> Integers:
        """Bytes in use at every time."""
        change = np.zeros(self.horizon + 1, np.int64)
        nbytes = self.nbytes[self.owners]
        np.add.at(change, self.begins, nbytes)
        np.subtract.at(change, self.ends, nbytes)
        return np.cumsum(change)

    def events(self) -> tuple[Integers, Integers]:
        """Spans as they begin and end to be in use, and whether they begin; at one time, the ends come first."""
        times = np.concatenate((2 * self.ends, 2 * self.begins + 1))
        order = np.argsort(times, kind="stable")
        return np.tile(self.owners, 2)[order], (order >= len(self.ends)).astype(np.int64)


def _sums(figures: Integers, first: Integers) -> Integers:
    """The sum of each range of figures, none of which is empty."""
    return np.add.reduceat(figures, first[:-1]) if len(figures) else figures


class Arena:
    """Spans with offsets in bytes, in the smallest arena that has been found.

    Attributes:
        offsets: in the order of the spans.
        nbytes: of the arena.
        used: the most bytes in use at any time; no arena has fewer.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        figures = _Spans.of(spans)
        always = figures.lengths == figures.horizon
        self.offsets = np.zeros(len(spans), np.int64)
        self.offsets[always] = np.cumsum(figures.nbytes[always]) - figures.nbytes[always]
        self._bottom = int(figures.nbytes[always].sum())
        self._above = np.flatnonzero(~always)
        self._spans = _Spans.of([spans[index] for index in self._above.tolist()])
        self._orders = _orders(self._spans)
        self._first_fit = _placing(len(self._above), self._spans) if len(self._above) else None
        self.used = self._bottom + int(self._spans.usage().max(initial=0))
        self.nbytes = self._bottom + (ENDLESS if len(self._above) else 0)

    def try_orders(self, tries: int = sys.maxsize) -> None:
        """Try so many further orders, or until there are no gaps."""
        if self._first_fit is None:
            return
        for order in itertools.islice(self._orders, 0 if self.nbytes == self.used else tries):
            found = self._first_fit(order, self.nbytes - self._bottom)
            if found is not None:
                self.offsets[self._above] = self._bottom + found
                self.nbytes = self._bottom + int((found + self._spans.nbytes).max())
            if self.nbytes == self.used:
                return


def assign_offsets(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Offsets in bytes, in the order of `spans`, and the size of the arena."""
    arena = Arena(spans)
    arena.try_orders()
    return arena.offsets.tolist(), arena.nbytes


def _most_between(figures: Integers, begins: Integers, ends: Integers) -> Integers:
    """The most of `figures[begin:end]` for each pair: of two ranges of a power of two that cover it."""
    found, size, lengths = np.zeros(len(begins), np.int64), 1, ends - begins
    while len(figures):
        here = (lengths >= size) & (lengths < 2 * size)
        found[here] = np.maximum(figures[begins[here]], figures[ends[here] - size])
        figures, size = np.maximum(figures[:-size], figures[size:]), 2 * size
    return found


def usage(spans: Sequence[Span]) -> list[int]:
    """Bytes in use at every time."""
    found: list[int] = _Spans.of(spans).usage().tolist()
    return found


def _orders(spans: _Spans) -> Iterator[Integers]:
    """Orders to place spans in, one after another.

    Largest first, of equal ones by time: intervals are coloured so with no more colours than meet. Largest first, then
    longest in use. What is in use when most is, largest first. Longest in use first. What takes most bytes for longest.
    What is in use when most is, by time.
    """
    nbytes, lengths, begins = spans.nbytes, spans.lengths, spans.begins[spans.first[:-1]]
    yield np.lexsort((begins, -nbytes))
    yield np.lexsort((-lengths, -nbytes))
    most = spans.most_beside()
    yield np.lexsort((begins, -nbytes, -most))
    yield np.lexsort((-nbytes, -lengths))
    yield np.argsort(-lengths * nbytes, kind="stable")
    yield np.lexsort((-nbytes, begins, -most))


def _placing(count: int, spans: _Spans) -> Callable[[Integers, int], Integers | None]:
    """Order of spans, and a size -> their offsets by first fit, if that takes less; compiled if there is much to do."""
    words = -(-count // WORD)
    if _first_fit.pays(len(spans.begins) ** 2 // PAIRS_PER_TURN):
        met = np.zeros(count * words, np.int64)
        _meet(*spans.events(), np.zeros(words, np.int64), met)

        def placed(order: Integers, size: int) -> Integers | None:
            offsets, *room = np.zeros((4, count), np.int64)
            return offsets if _first_fit(order, spans.nbytes, met, words, size, offsets, *room) else None

        return placed
    rows = [0] * (count * words)
    events, begins = spans.events()
    _meet.interpreted(events.tolist(), begins.tolist(), [0] * words, rows)

    def placed_one_by_one(order: Integers, size: int) -> Integers | None:
        offsets, *room = [[0] * count for _ in range(4)]
        lists = (order.tolist(), spans.nbytes.tolist(), rows)
        return np.array(offsets, np.int64) if _first_fit.interpreted(*lists, words, size, offsets, *room) else None

    return placed_one_by_one


@in_place
def _meet(spans: Row, begins: Row, live: Row, met: Row) -> None:
    """Add to the set of every span those in use when it begins to be; of two that meet, one is in the other's set.

    `live` are those in use: bit b of word w is span w * WORD + b. `met` are so many words per span.
    """
    for event in range(len(spans)):
        span = spans[event]
        if begins[event]:
            for word in range(len(live)):
                met[span * len(live) + word] |= live[word]
        live[span // WORD] ^= 1 << (span % WORD)


@in_place
def _first_fit(
    order: Row,
    nbytes: Row,
    met: Row,
    words: int,
    most: int,
    offsets: Row,
    placed: Row,
    bottoms: Row,
    tops: Row,
) -> bool:
    """Place spans in turn, each at the lowest offset where it meets none that is there; whether all end below `most`.

    Who meets whom is in `met`, as `_meet` fills it. `placed` is kept by offset, with where each begins and ends.
    """
    for count in range(len(order)):
        index = order[count]
        row, word, bit = index * words, index // WORD, index % WORD
        size = nbytes[index]
        offset = 0
        for k in range(count):
            if bottoms[k] - offset >= size:
                break
            if tops[k] <= offset:
                continue
            other = placed[k]
            if (met[row + other // WORD] >> (other % WORD)) & 1 or (met[other * words + word] >> bit) & 1:
                offset = tops[k]
        if offset + size >= most:
            return False
        offsets[index] = offset
        place = count
        while place and bottoms[place - 1] > offset:
            placed[place], bottoms[place], tops[place] = placed[place - 1], bottoms[place - 1], tops[place - 1]
            place -= 1
        placed[place], bottoms[place], tops[place] = index, offset, offset + size
    return True
