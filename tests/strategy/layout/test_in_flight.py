"""Micro-batches in flight, against the figures that the papers print."""

from __future__ import annotations

import pytest

from strategy.graph.graph import Phase
from strategy.layout.in_flight import ROUNDS, Leg, UnitRun, unit_run
from strategy.layout.schedule import Schedule


def stash(name: str, stages: int, micro_batches: int, laps: int = 1) -> list[int]:
    """Per stage, the micro-batches between forward and the last chunk of the same lap, over all laps at once."""
    schedule = Schedule(name)
    run = unit_run(schedule, stages, micro_batches, laps)
    last = Phase.WEIGHT if schedule.splits_backward else Phase.BACKWARD
    found = []
    for stage in range(stages):
        events = []
        for lap in range(laps):
            events += [(time, 1) for time in run.begins[Leg(Phase.FORWARD, stage, lap)]]
            events += [(time + 1, -1) for time in run.begins[Leg(last, stage, lap)]]
        held = [0]
        for _, change in sorted(events):
            held.append(held[-1] + change)
        found.append(max(held))
    return found


@pytest.mark.parametrize(
    ("name", "micro_batches", "laps", "wanted"),
    [
        ("gpipe", 8, 1, [8, 8, 8, 8]),
        ("1f1b", 8, 1, [4, 3, 2, 1]),
        ("1f1b", 2, 1, [2, 2, 2, 1]),
        ("oneflow", 8, 1, [8, 7, 4, 1]),
        ("oneflow", 16, 1, [9, 7, 4, 1]),
        ("zb-h1", 8, 1, [4, 4, 4, 4]),
        # Narayanan et al. 2021: 1F1B's memory times 1 + (p - 1) / (p v); a lap is one v-th of a stage.
        ("interleaved", 8, 2, [11, 9, 7, 5]),
        ("interleaved", 8, 3, [15, 13, 11, 9]),
        # Qi et al. 2024: all stages hold what the first does under 1F1B; a lap is half a stage.
        ("zbv", 8, 2, [8, 8, 8, 8]),
    ],
)
def test_micro_batches_in_flight(name: str, micro_batches: int, laps: int, wanted: list[int]) -> None:
    assert stash(name, 4, micro_batches, laps) == wanted
    if laps == 1:
        run = unit_run(Schedule(name), 4, micro_batches)
        last = Phase.WEIGHT if run.schedule.splits_backward else Phase.BACKWARD
        legs = [(Leg(Phase.FORWARD, stage), Leg(last, stage)) for stage in range(4)]
        assert [run.in_flight(write, [read]) for write, read in legs] == wanted


@pytest.mark.parametrize(("name", "step_end"), [("gpipe", 22), ("1f1b", 22), ("zb-h1", 27)])
def test_a_step_of_unit_chunks_ends_when_the_papers_say(name: str, step_end: int) -> None:
    """Four stages, eight micro-batches: 2 (m + p - 1), and 3 m + p - 1 where F = B = W."""
    assert unit_run(Schedule(name), 4, 8).end == step_end


def test_what_arrives_waits_for_its_readers() -> None:
    run = unit_run(Schedule.ONE_F_ONE_B, 3, 6)
    forward, backward = Leg(Phase.FORWARD, 1), Leg(Phase.BACKWARD, 1)
    sent = Leg(Phase.FORWARD, 0)
    assert run.in_flight(sent, [forward], arrives=True) == 1
    assert run.in_flight(sent, [forward, backward], arrives=True) == 3
    assert run.in_flight(forward, [backward]) == 2
    assert run.in_flight(forward, [forward]) == 1


def test_what_is_not_in_the_order_of_the_graph() -> None:
    """Stage 1 of ZB-H1 runs the second micro-batch's backward before the first one's weight gradients."""
    plain, split = unit_run(Schedule.ONE_F_ONE_B, 2, 4), unit_run(Schedule.ZB_H1, 2, 4)
    forward, backward, weight = (Leg(phase, 1) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT))
    assert plain.straight(forward, [backward])
    assert split.straight(forward, [backward])
    assert not split.straight(backward, [weight])


def test_laps_of_one_micro_batch_come_as_in_the_graph_unless_split() -> None:
    """With one micro-batch the weight gradients of a later lap precede the backward pass of an earlier one."""

    def first_to_update(name: str) -> bool:
        run: UnitRun = unit_run(Schedule(name), 1, 1, 2)
        lap_1 = Leg(Phase.WEIGHT if run.schedule.splits_backward else Phase.BACKWARD, 0, 1)
        return run.straight(lap_1, [Leg(Phase.UPDATE, 0)])

    assert first_to_update("interleaved")
    assert not first_to_update("zbv")


@pytest.mark.parametrize("name", list(Schedule))
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_counts_settle(name: str, stages: int) -> None:
    """Twice as many micro-batches hold no more at once, or all that there are."""
    schedule = Schedule(name)
    laps = schedule.default_laps
    count = ROUNDS * stages
    few, many = (unit_run(schedule, stages, number, laps) for number in (count, 2 * count))
    full = _unit_run_of_all(schedule, stages, 2 * count, laps)
    for write in full.begins:
        for read in full.begins:
            if read.stage == write.stage:
                exact = full.in_flight(write, [read])
                assert many.in_flight(write, [read]) == exact
                assert few.in_flight(write, [read]) == (exact if exact < 2 * count else count)
                assert many.straight(write, [read]) == full.straight(write, [read])


def _unit_run_of_all(schedule: Schedule, stages: int, count: int, laps: int) -> UnitRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategy.layout.in_flight.ROUNDS", 10**9)
        return unit_run.__wrapped__(schedule, stages, count, laps)
