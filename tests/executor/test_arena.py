"""Tensors in one piece of memory: never two at one place at one time, and no more memory than need be."""

import random

from executor.arena import Span, place


def peak(spans: list[Span]) -> int:
    """The most that is alive at any time: no arena is smaller."""
    return max((sum(s.nbytes for s in spans if s.begin <= t < s.end) for t in range(64)), default=0)


def test_tensors_that_live_one_after_another_share_a_place() -> None:
    spans = [Span(0, 2, 100), Span(2, 4, 60), Span(4, 6, 100)]
    assert place(spans) == ([0, 0, 0], 100)


def test_tensors_that_live_together_lie_side_by_side() -> None:
    spans = [Span(0, 3, 100), Span(2, 5, 60), Span(4, 6, 40)]
    assert place(spans) == ([0, 100, 0], 160)


def test_nothing_needs_nothing() -> None:
    assert place([]) == ([], 0)


def test_random_tensors_never_meet_and_waste_little() -> None:
    rng = random.Random(0)
    wasted = []
    for _ in range(500):
        spans = []
        for _ in range(rng.randint(1, 30)):
            begin = rng.randrange(60)
            spans.append(Span(begin, rng.randint(begin + 1, 63), 64 * rng.randint(1, 50)))
        offsets, total = place(spans)
        for i, one in enumerate(spans):
            for j, other in enumerate(spans[:i]):
                together = one.begin < other.end and other.begin < one.end
                apart = offsets[i] + one.nbytes <= offsets[j] or offsets[j] + other.nbytes <= offsets[i]
                assert apart or not together
        assert total >= peak(spans)
        wasted.append(total / peak(spans) - 1)
    assert sum(wasted) / len(wasted) < 0.1
