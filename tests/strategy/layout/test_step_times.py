"""Step times: what hides beside chunks takes no time, what does not is waited for, and paths are bounds."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from strategy.bounds.path_mix import mixed
from strategy.graph.graph import Phase
from strategy.layout.critical_path import critical_path, even_paths, straight_path
from strategy.layout.makespan import makespan_ns
from strategy.layout.schedule import Schedule, chunk_order, schedule_problem
from strategy.layout.step_times import (
    ARRAYS,
    TICKS,
    Overlap,
    StepTimes,
    in_ticks,
    mean_path,
    no_times,
    step_ns,
    steps_ns,
)
from strategy.search.candidate.path_mix import longest_mix
from tests.support.long_parameters import long_but

CASES = 400
QUARTER = Overlap(allowed=True, slowed_ticks=TICKS // 4)


def one_stage(overlap: Overlap, **times_ns: int) -> StepTimes:
    """Of one stage; the rest takes no time."""
    found = no_times(1, 1)
    for name, ns in times_ns.items():
        found[name][...] = ns
    return StepTimes(**found, overlap=overlap)


def random_times(rng: random.Random, stages: int, laps: int, overlap: Overlap) -> StepTimes:
    """What goes on beside takes as long as chunks, a tenth of it, or five times as long; so do copies, or none."""
    arrays, beside, copies = no_times(stages, laps), rng.choice([100, 1000, 5000]), rng.choice([1, 1, 1, 1, 1000, 5000])
    for name, zeros in arrays.items():
        most = beside if "overlapped" in name else copies if "copied" in name else 1000
        arrays[name] = np.array([rng.randrange(most) for _ in zeros.flat], np.int64).reshape(zeros.shape)
    return StepTimes(**arrays, overlap=overlap)


def random_case(rng: random.Random) -> tuple[Schedule, int, StepTimes, StepTimes] | None:
    """A schedule, micro-batches and times of two cases."""
    schedule, stages = rng.choice(list(Schedule)), rng.randint(1, 4)
    laps = {Schedule.INTERLEAVED: rng.randint(2, 3), Schedule.ZBV: 2}.get(schedule, 1)
    count = rng.choice([stages, 2 * stages, rng.randint(1, 9)])
    if schedule_problem(schedule, stages, laps, count):
        return None
    shared = rng.choice([0, TICKS // 3, TICKS])
    messages = rng.choice([(), tuple(rng.choice([0, TICKS // 2, TICKS]) for _ in range(stages))])
    overlap = Overlap(rng.random() < 0.7, rng.choice([0, TICKS // 5]), shared, messages)
    return schedule, count, *(random_times(rng, stages, laps, overlap) for _ in range(2))


@pytest.mark.parametrize(
    ("beside_ns", "expected_ns"),
    [(0, 100), (40, 110), (80, 120), (200, 200)],
)
def test_a_chunk_is_slowed_down_or_as_long_as_what_goes_on_beside_it(beside_ns: int, expected_ns: int) -> None:
    times = one_stage(QUARTER, forward_ns=100, forward_overlapped_ns=beside_ns)
    assert step_ns(Schedule.ONE_F_ONE_B, 3, times) == 3 * expected_ns


@pytest.mark.parametrize(("beside_ns", "copied_ns", "expected_ns"), [(40, 90, 110), (40, 180, 180), (200, 180, 200)])
def test_copies_slow_nothing_down_and_go_on_beside_collectives(
    beside_ns: int, copied_ns: int, expected_ns: int
) -> None:
    times = one_stage(QUARTER, forward_ns=100, forward_overlapped_ns=beside_ns, forward_copied_ns=copied_ns)
    assert step_ns(Schedule.ONE_F_ONE_B, 3, times) == 3 * expected_ns


@pytest.mark.parametrize(
    ("beside_ns", "shared", "expected_ns"),
    [(40, 1.0, 110), (80, 1.0, 120), (110, 1.0, 140), (200, 1.0, 230), (200, 0.5, 215), (200, 0.0, 200)],
)
def test_what_is_waited_for_holds_up_what_goes_on_beside_it(beside_ns: int, shared: float, expected_ns: int) -> None:
    """30 of 100 ns are on the links that something else wants for longer than is left."""
    overlap = replace(QUARTER, shared_ticks=round(TICKS * shared))
    times = one_stage(overlap, forward_ns=70, forward_waited_ns=30, forward_overlapped_ns=beside_ns)
    assert step_ns(Schedule.ONE_F_ONE_B, 3, times) == 3 * expected_ns


@pytest.mark.parametrize(("beside_ns", "share", "expected_ns"), [(60, 1.0, 100), (90, 1.0, 130), (90, 0.5, 110)])
def test_messages_hold_up_what_goes_on_beside_their_senders(beside_ns: int, share: float, expected_ns: int) -> None:
    """40 of it, or half, in forward passes of the first stage alone: two of 100 ns."""
    found = no_times(2, 1)
    found["forward_ns"][:], found["forward_message_ns"][:], found["forward_overlapped_ns"][0] = 100, 40, beside_ns
    times = StepTimes(**found, overlap=Overlap(allowed=True, message_ticks=(round(share * TICKS), 0)))
    assert step_ns(Schedule.GPIPE, 2, times) == 2 * expected_ns + 40 + 100


@pytest.mark.parametrize(("gathered_ns", "alone_ns", "expected_ns"), [(30, 100, 120), (60, 150, 180), (100, 230, 260)])
def test_messages_of_a_lap_hold_up_what_is_gathered_for_the_next(
    gathered_ns: int, alone_ns: int, expected_ns: int
) -> None:
    """Of two stages and micro-batches, on two laps: 10 ns each on the way to and from another stage.

    The second lap of the first stage ends its first chunk when both are gathered and three messages have gone.
    """
    found = no_times(2, 2)
    found["forward_ns"][:], found["forward_message_ns"][:] = 10, 10
    found["before_overlapped_ns"][0] = gathered_ns
    plain = StepTimes(**found, overlap=Overlap(allowed=True))
    sharing = replace(plain, overlap=Overlap(allowed=True, message_ticks=(TICKS, TICKS)))
    assert step_ns(Schedule.INTERLEAVED, 2, plain) == alone_ns
    assert step_ns(Schedule.INTERLEAVED, 2, sharing) == expected_ns


@pytest.mark.parametrize("at_ns", [(0, 0), (1, 0), (0, 1), (5, 0), (0, 5), (3, 3), (1, 7)])
def test_what_laps_exchange_goes_when_their_last_chunk_has_begun(at_ns: tuple[int, int]) -> None:
    """Of one stage and one micro-batch of two laps, six chunks of 2 ns; one exchange behind the other."""
    found = no_times(1, 2)
    for name in ("forward_ns", "backward_ns", "weight_ns"):
        found[name][:] = 2
    found["after_overlapped_ns"][0] = at_ns
    plain = StepTimes(**found, overlap=Overlap(allowed=True))
    chunks = list(chunk_order(Schedule.ZBV, 1, 0, 1, 2))
    begins = {chunk.lap: 2 * at for at, chunk in enumerate(chunks) if chunk.phase is Phase.WEIGHT}
    ends = 0
    for lap in sorted(begins, key=lambda lap: begins[lap]):
        ends = max(ends, begins[lap]) + at_ns[lap]
    assert step_ns(Schedule.ZBV, 1, plain) == max(2 * len(chunks), ends)


def test_a_lap_waits_for_what_is_gathered_for_it_and_those_before() -> None:
    """Forward passes of 10 ns on two laps of one stage: the first ends behind its own 30, the second behind 50."""
    found = no_times(1, 2)
    found["forward_ns"][:], found["before_overlapped_ns"][0] = 10, (30, 20)
    assert step_ns(Schedule.ZBV, 1, StepTimes(**found, overlap=Overlap(allowed=True))) == 50
    found["before_overlapped_ns"][0] = 30, 5
    assert step_ns(Schedule.ZBV, 1, StepTimes(**found, overlap=Overlap(allowed=True))) == 40


@pytest.mark.parametrize(("beside_ns", "expected_ns"), [(40, 410), (200, 500), (220, 520)])
def test_what_is_done_once_hides_behind_one_chunk(beside_ns: int, expected_ns: int) -> None:
    """Parameters behind the first forward pass, gradients behind the last backward pass, of 100 ns each."""
    passes = {"forward_ns": 100, "backward_ns": 60, "weight_ns": 40}
    for name in ("before_overlapped_ns", "after_overlapped_ns"):
        assert step_ns(Schedule.GPIPE, 2, one_stage(QUARTER, **passes, **{name: beside_ns})) == expected_ns


def test_where_nothing_overlaps_nothing_is_slowed_down() -> None:
    times = replace(one_stage(Overlap(allowed=False), forward_ns=100, backward_ns=100), overlap=Overlap(allowed=False))
    assert step_ns(Schedule.ONE_F_ONE_B, 2, times) == 400


def test_messages_slow_down_the_chunks_at_both_ends_but_for_the_one_that_waits() -> None:
    """Of 100 ns, and 10 more beside a message of 40; the second stage waits for the first message, then for none.

    Beside the message of a single micro-batch nothing is computed.
    """
    found = no_times(2, 1)
    found["forward_ns"][:], found["forward_message_ns"][:] = 100, 40
    plain = StepTimes(**found, overlap=Overlap(allowed=True))
    slowed = replace(plain, overlap=QUARTER)
    assert [step_ns(Schedule.GPIPE, m, plain) for m in (1, 2)] == [240, 340]
    assert [step_ns(Schedule.GPIPE, m, slowed) for m in (1, 2)] == [240, 110 + 30 + 2 * 110]


@pytest.mark.parametrize(
    ("schedule", "laps", "more_ns"),
    [(Schedule.GPIPE, 1, 20), (Schedule.ONE_F_ONE_B, 1, 20), (Schedule.ZB_H1, 1, 10), (Schedule.INTERLEAVED, 2, 18)],
)
def test_exchanges_beside_the_last_backward_passes_add_up(schedule: Schedule, laps: int, more_ns: int) -> None:
    """40 ns on each of three stages slow down by 10 on one of them, and by half of that each of two messages before.

    On two laps by 5 on the last stage, and by half of that on the way of each of five messages before. Where gradients
    of weights are chunks of their own, no message waits for them.
    """
    found = no_times(3, laps)
    for name in ("forward_ns", "backward_ns", "weight_ns"):
        found[name][:] = 100
    plain = StepTimes(**found, overlap=QUARTER)
    exchanging = replace(plain, after_overlapped_ns=np.full((3, laps), 40 // laps))
    assert step_ns(schedule, 3, exchanging) - step_ns(schedule, 3, plain) == more_ns


@pytest.mark.slow
@pytest.mark.parametrize("most", long_but([120, CASES], 0))
def test_paths_are_as_long_as_the_step_and_no_longer_than_others(most: int) -> None:
    """The critical path of a case is its step; under other times it, straight and even ones are no longer."""
    rng, seen = (
        random.Random(3),
        dict.fromkeys(("late", "copies", "beside", "splits", "laps", "gathers", "exchanges", "waits", "covers"), 0),
    )
    cases = 0
    while cases < most:
        found = random_case(rng)
        if found is None:
            continue
        schedule, count, times, others = found
        cases += 1
        ticks = in_ticks(schedule, count, times)
        critical = mean_path(schedule, count, times, critical_path(schedule, count, ticks))
        assert critical.length(times) == makespan_ns(schedule, count, ticks)
        even = even_paths(schedule, times.stages, times.laps, count, times.overlap.allowed)
        straight = straight_path(schedule, count, ticks)
        each = [critical, *(mean_path(schedule, count, times, path) for path in (even, straight))]
        step = makespan_ns(schedule, count, in_ticks(schedule, count, others))
        for path in (*each, mixed(each, [1, 2, 3]), mixed(each, longest_mix(each, [times, others]))):
            assert all((getattr(path.counts, name) >= 0).all() for name in ARRAYS)
            assert TICKS * path.length(others) <= path.number * step
        counts = critical.counts
        seen["late"] += times.laps > 1 and bool((counts.after_overlapped_ns % TICKS).any())
        seen["copies"] += bool(counts.forward_copied_ns.any())
        seen["beside"] += bool((counts.forward_overlapped_ns >= TICKS).any())
        seen["gathers"] += bool((counts.before_overlapped_ns >= TICKS).any())
        seen["exchanges"] += bool((counts.after_overlapped_ns >= TICKS).any())
        seen["waits"] += bool((counts.forward_waited_ns % TICKS).any())
        seen["covers"] += not schedule.splits_backward and bool(counts.backward_covered_ns.any())
        seen["splits"] += schedule.splits_backward
        seen["laps"] += times.laps > 1
    print(seen)
    assert min(seen.values()) >= most // 12


def test_many_cases_at_once_are_each_alone() -> None:
    rng = random.Random(8)
    each = [random_times(rng, 3, 1, QUARTER) for _ in range(5)]
    stacked = StepTimes(**{name: np.array([getattr(one, name) for one in each]) for name in ARRAYS}, overlap=QUARTER)
    expected = [step_ns(Schedule.ONE_F_ONE_B, 6, one) for one in each]
    assert steps_ns(Schedule.ONE_F_ONE_B, 6, stacked).tolist() == expected
