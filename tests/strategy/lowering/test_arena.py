"""Blocks in one piece of memory: never two at one place at one time, and no more memory than need be."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from strategy.base.compiled import CompiledLoop
from strategy.lowering.arena import Arena, Span, assign_offsets, usage


def span(*lives: tuple[int, int], nbytes: int) -> Span:
    return Span(np.array(lives, np.int64), nbytes)


def test_blocks_in_use_one_after_another_share_a_place() -> None:
    spans = [span((0, 2), nbytes=100), span((2, 4), nbytes=60), span((4, 6), nbytes=100)]
    assert assign_offsets(spans) == ([0, 0, 0], 100)


def test_blocks_in_use_together_lie_side_by_side() -> None:
    spans = [span((0, 3), nbytes=100), span((2, 5), nbytes=60), span((4, 6), nbytes=40)]
    assert assign_offsets(spans) == ([0, 100, 0], 160)


def test_blocks_in_use_again_and_again_share_a_place_in_between() -> None:
    spans = [span((0, 2), (4, 6), nbytes=100), span((2, 4), (6, 8), nbytes=60), span((3, 5), nbytes=10)]
    assert assign_offsets(spans) == ([0, 0, 100], 110)


def test_another_order_is_taken_where_the_largest_first_leaves_a_gap() -> None:
    """Largest first puts the 4 above the 5, where the two 3 then do not fit below it."""
    spans = [span((0, 2), nbytes=5), span((1, 4), nbytes=4), span((2, 4), nbytes=3), span((3, 5), nbytes=3)]
    offsets, size = assign_offsets(spans)
    assert size == max(usage(spans)) == 10
    assert disjoint(spans, offsets)


def test_what_is_equally_large_takes_no_more_than_is_in_use_at_once() -> None:
    """Each in use once: intervals, which are coloured as they begin with as many colours as ever meet."""
    rng, by_length = random.Random(7), 0
    for _ in range(60):
        begins = [rng.randrange(200) for _ in range(80)]
        spans = [span((begin, begin + rng.randint(1, 40)), nbytes=64) for begin in begins]
        offsets, size = assign_offsets(spans)
        assert disjoint(spans, offsets)
        assert size == max(usage(spans))
        longest_first = sorted(spans, key=lambda one: one.lives[0, 0] - one.lives[0, 1])
        by_length += first_fit(longest_first) > size
    assert by_length > 10, by_length


def first_fit(spans: list[Span]) -> int:
    """The size of the arena if each in turn lies as low as it can."""
    placed: list[tuple[Span, int]] = []
    for one in spans:
        taken = {
            at for other, at in placed if one.lives[0, 0] < other.lives[0, 1] and other.lives[0, 0] < one.lives[0, 1]
        }
        placed.append((one, next(at for at in range(0, 64 * len(spans), 64) if at not in taken)))
    return max(at for _, at in placed) + 64


def test_nothing_needs_nothing() -> None:
    assert assign_offsets([]) == ([], 0)


@pytest.mark.long
def test_random_blocks_never_meet_and_waste_little() -> None:
    rng = random.Random(0)
    wasted = []
    for _ in range(500):
        spans = []
        for _ in range(rng.randint(1, 30)):
            cuts = sorted(rng.sample(range(64), 2 * rng.randint(1, 3)))
            spans.append(span(*zip(cuts[::2], cuts[1::2], strict=True), nbytes=64 * rng.randint(1, 50)))
        offsets, size = assign_offsets(spans)
        assert disjoint(spans, offsets)
        least = max(sum(s.nbytes for s in spans if any(b <= t < e for b, e in s.lives)) for t in range(64))
        assert size >= least == max(usage(spans))
        wasted.append(size / least - 1)
    assert sum(wasted) / len(wasted) < 0.12


def test_orders_that_are_tried_later_find_what_all_of_them_find_at_once() -> None:
    rng, improved = random.Random(2), 0
    for _ in range(60):
        spans = []
        for _ in range(rng.randint(1, 40)):
            cuts = sorted(rng.sample(range(64), 2 * rng.randint(1, 3)))
            spans.append(span(*zip(cuts[::2], cuts[1::2], strict=True), nbytes=rng.randint(1, 50)))
        arena = Arena(spans)
        arena.try_orders(2)
        first = arena.nbytes
        assert arena.used == max(usage(spans)) <= first
        assert disjoint(spans, arena.offsets.tolist())
        arena.try_orders()
        assert (arena.offsets.tolist(), arena.nbytes) == assign_offsets(spans)
        improved += arena.nbytes < first
    assert improved > 5


def disjoint(spans: list[Span], offsets: list[int]) -> bool:
    """Whether no two blocks that are in use together overlap."""
    for i, one in enumerate(spans):
        for j, other in enumerate(spans[:i]):
            together = any(b < e2 and b2 < e for b, e in one.lives for b2, e2 in other.lives)
            if together and offsets[i] + one.nbytes > offsets[j] and offsets[j] + other.nbytes > offsets[i]:
                return False
    return True


@pytest.mark.parametrize("compiled", [False, True])
def test_many_blocks_lie_where_the_definition_of_first_fit_puts_them(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Largest first, each at the lowest offset that is free; by the interpreter and by compiled code."""
    monkeypatch.setattr(CompiledLoop, "pays", lambda _loop, _turns: compiled)
    rng = random.Random(1)
    spans = []
    for _ in range(500):
        first, gap = rng.randrange(450), rng.randint(1, 20)
        spans.append(span((first, first + 15), (first + 15 + gap, first + 40), nbytes=rng.randint(1, 50)))
    offsets, size = assign_offsets(spans)
    placed = {tuple(lowest_offsets(spans, order)) for order in orders(spans)}
    assert tuple(offsets) in placed
    assert size == min(max(o + s.nbytes for o, s in zip(found, spans, strict=True)) for found in placed)


def length(span: Span) -> int:
    """For how long it is in use."""
    return sum(end - begin for begin, end in span.lives.tolist())


def orders(spans: list[Span]) -> list[list[int]]:
    """The orders that are tried."""
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-spans[i].nbytes, -length(spans[i]), i),
        lambda i: (-length(spans[i]), -spans[i].nbytes, i),
        lambda i: (-length(spans[i]) * spans[i].nbytes, i),
        lambda i: (spans[i].lives[0][0], -spans[i].nbytes, i),
    ]
    return [sorted(range(len(spans)), key=key) for key in keys]


def lowest_offsets(spans: list[Span], order: list[int]) -> list[int]:
    """Each block at the first offset, of 0 and the ends of others, where it overlaps none in use with it."""
    offsets: dict[int, int] = {}
    times = [{t for begin, end in s.lives for t in range(begin, end)} for s in spans]
    for i in order:
        rivals = [(offsets[j], offsets[j] + spans[j].nbytes) for j in offsets if times[i] & times[j]]
        free = (
            at
            for at in sorted({0, *(end for _, end in rivals)})
            if all(at + spans[i].nbytes <= begin or end <= at for begin, end in rivals)
        )
        offsets[i] = next(free)
    return [offsets[i] for i in range(len(spans))]
