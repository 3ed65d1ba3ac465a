"""Places that blocks take for good: by hand, and against all micro-batches of whole steps one by one.

That no plan holds less than its rows of memory say, these among them, is held in `test_chunk_states`.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest

from strategy.bounds.chunk_states import ChunkState, moments
from strategy.bounds.places_taken import DEFERRED, SAVED, places_taken
from strategy.layout.schedule import Schedule, schedule_problem


@pytest.mark.parametrize(
    ("schedule", "stages", "stage", "m", "laps", "saved", "deferred"),
    [
        # F0 F1 B0 F2 B1 F3 B2 B3: two blocks, both in use at once
        (Schedule.ONE_F_ONE_B, 2, 0, 4, 1, (2,), (0,)),
        # one micro-batch after the other: one block
        (Schedule.ONE_F_ONE_B, 2, 1, 4, 1, (1,), (0,)),
        # all at once
        (Schedule.GPIPE, 2, 0, 3, 1, (3,), (0,)),
        # 79 are in use at most; of the first two laps, at different times, 32 each
        (Schedule.INTERLEAVED, 16, 0, 64, 4, (32, 32, 16, 16), (0, 0, 0, 0)),
        # what waits for gradients of weights at the end takes other places than what is saved before
        (Schedule.ZBV, 16, 14, 64, 2, (18, 15), (15, 14)),
    ],
)
def test_places_by_hand(
    schedule: Schedule,
    stages: int,
    stage: int,
    m: int,
    laps: int,
    saved: tuple[int, ...],
    deferred: tuple[int, ...],
) -> None:
    exact, _ = places_taken(schedule, stages, stage, m, laps)
    assert (exact.saved, exact.deferred) == (saved, deferred)


def _in_use(schedule: Schedule, stages: int, stage: int, m: int, laps: int) -> dict[tuple[int, int, int], set[int]]:
    """(kind, lap, block) -> the moments of a step in which it is in use in some step, micro-batch by micro-batch."""
    numbers, starts = moments(schedule, stages, stage, m, laps)
    found: dict[tuple[int, int, int], set[int]] = {}
    for kind, lap in itertools.product((SAVED, DEFERRED), range(laps)):
        blocks = int(numbers[kind, :, lap].max())
        for moment in range(numbers.shape[1]):
            begin, count = int(starts[kind, moment, lap]), int(numbers[kind, moment, lap])
            for step in range(blocks // math.gcd(m, blocks) if blocks else 0):
                for number in range(begin, begin + count):
                    found.setdefault((kind, lap, (step * m + number) % blocks), set()).add(moment)
    return found


def _largest(meeting: dict[tuple[int, int, int], set[int]], kept: ChunkState) -> bool:
    """Whether there are so many blocks of every kind and lap of which every two meet: found lap by lap."""
    wanted = {
        (kind, lap): count
        for kind, counts in ((SAVED, kept.saved), (DEFERRED, kept.deferred))
        for lap, count in enumerate(counts)
    }
    chosen: list[tuple[int, int, int]] = []
    for kind, lap in wanted:
        mine = [block for block in meeting if block[:2] == (kind, lap)]
        good = [block for block in mine if all(meeting[block] & meeting[other] for other in chosen)]
        if len(good) < wanted[kind, lap]:
            return False
        chosen += good[: wanted[kind, lap]]
    return all(meeting[one] & meeting[other] for one, other in itertools.combinations(chosen, 2))


def test_blocks_that_are_taken_meet_in_whole_steps() -> None:
    """Of random schedules: with all micro-batches, in as many steps as it takes blocks to come round."""
    draw, looked_at, beyond = random.Random(4), 0, 0
    while looked_at < 60:
        schedule, stages, m = draw.choice(list(Schedule)), draw.choice((2, 3, 4, 6)), draw.choice((4, 6, 8, 12, 20, 32))
        laps = draw.choice((2, 3, 4)) if schedule is Schedule.INTERLEAVED else schedule.default_laps
        stage = draw.randrange(stages)
        if schedule_problem(schedule, stages, laps, m) is not None:
            continue
        exact, roomy = places_taken(schedule, stages, stage, m, laps)
        assert _largest(_in_use(schedule, stages, stage, m, laps), exact), (schedule, stages, stage, m, laps)
        assert sum(roomy.saved) <= sum(exact.saved)
        numbers, _ = moments(schedule, stages, stage, m, laps)
        beyond += sum(exact.saved) + sum(exact.deferred) > int((numbers[SAVED] + numbers[DEFERRED]).sum(1).max())
        looked_at += 1
    assert beyond >= 10, "more than are in use at any one time"
