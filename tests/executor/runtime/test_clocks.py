"""Clocks that are ahead and drift: records of all ranks by one of them."""

from __future__ import annotations

import random

import pytest

from executor.runtime.clocks import ClockReading, on_one_clock, read_rounds
from executor.runtime.worker import Record


@pytest.mark.parametrize("ahead", [0, 5, -(10**12), 3 * 10**15])
def test_the_shortest_round_tells_within_its_half(ahead: int) -> None:
    rng = random.Random(ahead)
    for _ in range(50):
        rounds, now = [], rng.randrange(10**15)
        for _ in range(20):
            there, back = rng.randrange(1, 10**6), rng.randrange(1, 10**6)
            rounds.append((now, now + there + ahead, now + there + back))
            now += there + back
        found, half_width = read_rounds(rounds)
        assert abs(found - ahead) <= half_width
        assert half_width <= min(heard - asked for asked, _, heard in rounds) // 2 + 1


def record(start_ns: int, end_ns: int) -> Record:
    return (3, 1, 7, (0,), (1,), start_ns - 5, start_ns, end_ns)


@pytest.mark.parametrize("ahead", [0, 10**12, -(10**12)])
@pytest.mark.parametrize("fast", [0, 50, -50])
def test_records_of_a_clock_that_is_ahead_and_fast(ahead: int, fast: int) -> None:
    """Of millionths; an hour between the readings: 180 ms."""

    def other(time_ns: int) -> int:
        return time_ns + ahead + time_ns * fast // 10**6

    begin, end = 10**12, 10**12 + 3600 * 10**9
    before, after = (ClockReading(at, (0, other(at) - at), (0, 0)) for at in (begin, end))
    for true_start in (begin, begin + 10**9, (begin + end) // 2, end - 10**6):
        mine = record(true_start, true_start + 10**6)
        theirs = record(other(true_start), other(true_start + 10**6))
        assert on_one_clock(0, [mine], before, after) == [mine]
        (moved,) = on_one_clock(1, [theirs], before, after)
        assert moved[:5] == mine[:5]
        assert all(abs(found - true) <= 2 for found, true in zip(moved[6:], mine[6:], strict=True))
