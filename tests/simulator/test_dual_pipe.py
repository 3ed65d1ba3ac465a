"""DualPipe against the bubble and the memory that DeepSeek-V3's report prints (2024, arXiv:2412.19437, table 2)."""

from __future__ import annotations

import re

import pytest

from simulator.dual_pipe import PassKind, dual_pipe_order, dual_pipe_program
from simulator.simulate import simulate
from simulator.stage_times import StageTimes
from strategy.base.errors import InputError
from strategy.program.timeline import by_stream

SIZES = [(2, 4), (4, 8), (4, 10), (4, 20), (6, 12), (8, 20)]


def idle_ns(ranks: int, micro_batches: int, times: StageTimes, hidden_ns: int) -> list[int]:
    """Per rank, what a step takes beyond its acts."""
    timeline = simulate(dual_pipe_program([times] * ranks, micro_batches, hidden_ns=hidden_ns), steps=1).timeline
    computing = [r for s, r in zip(timeline.streams, by_stream(timeline), strict=True) if s.name == "compute"]
    return [timeline.makespan_ns - sum(r.end_ns - r.start_ns for r in records) for records in computing]


def printed_ns(ranks: int, times: StageTimes, hidden_ns: int) -> int:
    """(PP / 2 - 1)(F&B + B - 3W)."""
    overlapped_ns = times.forward_ns + times.backward_ns - hidden_ns
    return (ranks // 2 - 1) * (overlapped_ns + times.backward_ns - 3 * times.weight_ns)


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize(("times", "hidden_ns"), [((6, 12, 6), 0), ((10, 20, 10), 10), ((10, 20, 10), 4)])
def test_the_bubble_is_as_printed_where_weights_take_half_a_backward(
    ranks: int, micro_batches: int, times: tuple[int, int, int], hidden_ns: int
) -> None:
    stage = StageTimes(*times)
    assert max(idle_ns(ranks, micro_batches, stage, hidden_ns)) == printed_ns(ranks, stage, hidden_ns)


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize(("times", "hidden_ns"), [((6, 12, 4), 0), ((10, 25, 9), 5)])
def test_the_bubble_is_no_longer_than_printed(
    ranks: int, micro_batches: int, times: tuple[int, int, int], hidden_ns: int
) -> None:
    stage = StageTimes(*times)
    assert 0 <= max(idle_ns(ranks, micro_batches, stage, hidden_ns)) <= printed_ns(ranks, stage, hidden_ns)


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_a_rank_holds_one_micro_batch_more_than_there_are_ranks(ranks: int, micro_batches: int) -> None:
    found = simulate(dual_pipe_program([StageTimes(6, 12, 6)] * ranks, micro_batches), steps=1)
    assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == [ranks + 1] * ranks


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_every_part_of_every_micro_batch_once(ranks: int, micro_batches: int) -> None:
    for rank in range(ranks):
        pieces = [piece for act in dual_pipe_order(ranks, rank, micro_batches) for piece in act]
        assert len(pieces) == len(set(pieces))
        for direction in (0, 1):
            of = {
                part: [p.micro_batch for p in pieces if (p.part, p.direction) == (part, direction)] for part in PassKind
            }
            each = list(range(micro_batches // 2))
            assert of[PassKind.FORWARD] == each
            assert sorted(of[PassKind.BACKWARD] + of[PassKind.INPUT]) == each
            assert of[PassKind.WEIGHT] == of[PassKind.INPUT]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(3, 8), (1, 4), (4, 6), (4, 9)])
def test_what_there_is_not(ranks: int, micro_batches: int) -> None:
    with pytest.raises(InputError, match=re.escape(f"got {ranks if ranks % 2 else micro_batches}")):
        dual_pipe_program([StageTimes(1, 2, 1)] * ranks, micro_batches)
