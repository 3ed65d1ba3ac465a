"""The recurrence against plain Python, and against the simulator."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import reference
from simulator.pipelines import pipeline
from strategy.base.compiled import CompiledLoop
from strategy.base.errors import InputError
from strategy.layout import makespan as module
from strategy.layout.makespan import PipelineTimes, makespan_ns, makespans_ns
from strategy.layout.schedule import Schedule
from strategy.layout.warm import warm
from tests.support.stage_by_stage import makespan_by_chunks, random_pipeline, random_times


def times_of(p: int, laps: int, forward: Any, backward: Any, weight: Any, **more: Any) -> PipelineTimes:
    """The same on every lap, without messages and steps unless they are given."""
    chunks = [
        np.array(np.broadcast_to(np.reshape(each, (-1, 1)), (p, laps)), np.int64)
        for each in (forward, backward, weight)
    ]
    return replace(PipelineTimes.of_passes(*chunks), **more)


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("compiled", [True, False])
def test_it_is_what_the_chunks_take_one_by_one(
    compiled: bool, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loops are compiled, or interpreted, as a process begins that has run few turns of them."""
    monkeypatch.setattr(CompiledLoop, "worth", lambda loop, _turns: loop if compiled else loop.interpreted)
    rng = random.Random(1)
    for _ in range(60):
        p, laps, m = random_pipeline(rng, schedule)
        times = random_times(rng, p, laps, longest=rng.choice((1, 3, 50, 10**6)))
        assert makespan_ns(schedule, m, times) == makespan_by_chunks(schedule, m, times), (p, laps, m, times)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_many_cases_are_each_what_it_is_alone(schedule: Schedule) -> None:
    rng = random.Random(2)
    p, laps, m = random_pipeline(rng, schedule)
    times = random_times(rng, p, laps, longest=100, cases=(20,))
    arrays = [name for name in PipelineTimes.__slots__ if name != "overlaps"]
    each = [replace(times, **{name: getattr(times, name)[case] for name in arrays}) for case in range(20)]
    assert makespans_ns(schedule, m, times).tolist() == [makespan_ns(schedule, m, one) for one in each]


@pytest.mark.parametrize("schedule", [each for each in Schedule if each is not Schedule.GPIPE])
@pytest.mark.parametrize("m", [400, 6000])
def test_what_is_added_up_is_what_would_have_been_run(
    schedule: Schedule, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain loop runs every turn: the order has no section that repeats."""
    rng = random.Random(m)
    order_of = module.merged_order
    for stages in (1, 2, 4):
        times = random_times(rng, stages, schedule.default_laps, longest=rng.choice((2, 20)))
        found = makespan_ns(schedule, m, times)

        def plain(*given: Any) -> Any:
            order = order_of(*given)
            begin, end = order.section_at[1:3]
            legs = (order.legs[:begin], np.tile(order.legs[begin:end], order.turns[1]), order.legs[end:])
            section_at = np.array([0, *np.cumsum([part.size for part in legs])])
            return order._replace(legs=np.concatenate(legs), section_at=section_at, turns=np.ones(3, np.int64))

        with monkeypatch.context() as patch:
            patch.setattr(module, "merged_order", plain)
            assert makespan_ns(schedule, m, times) == found


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_step_of_a_million_micro_batches_is_added_up(schedule: Schedule) -> None:
    """Where all stages take as long, a micro-batch more is one more of the time of a stage."""
    laps = schedule.default_laps
    times = times_of(4, laps, 5, 7, 3)
    few, many = (makespan_ns(schedule, m, times) for m in (400, 2**20))
    assert many - few == (2**20 - 400) * laps * 15


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize(("stages", "rounds"), [(1, 3), (2, 1), (3, 2), (4, 4)])
def test_the_simulator_takes_as_long(schedule: Schedule, stages: int, rounds: int) -> None:
    rng = random.Random(stages)
    forward, backward, weight, update = ([rng.randint(1, 40) for _ in range(stages)] for _ in range(4))
    if not schedule.splits_backward:
        weight = [0] * stages
    program = pipeline(
        *(stages, stages * rounds, schedule),
        **{"forward_ns": forward, "backward_ns": backward, "weight_ns": weight, "update_ns": update},
    )
    times = times_of(stages, schedule.default_laps, forward, backward, weight, after_ns=np.array(update))
    simulated = max(record.end_ns for record in reference.run(program, 1).timeline.records)
    assert makespan_ns(schedule, stages * rounds, times) == simulated


def test_a_message_that_does_not_overlap_keeps_its_sender_busy() -> None:
    times = times_of(2, 1, 10, 20, 0, forward_message_ns=np.array([3]), backward_message_ns=np.array([4]))
    assert makespan_ns(Schedule.ONE_F_ONE_B, 1, times) == 10 + 3 + 10 + 20 + 4 + 20
    assert makespan_ns(Schedule.GPIPE, 2, times) == 20 + 3 + 10 + 40 + 4 + 20
    beside = replace(times, overlaps=False)
    assert makespan_ns(Schedule.GPIPE, 2, beside) == 2 * (10 + 3) + 10 + 2 * (20 + 4) + 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"forward_ns": np.ones(3, np.int64)}, "forward_ns: no times of stages and laps"),
        ({"weight_ns": np.ones((3, 2), np.int64)}, "weight_ns: wrong shape or type (got 'int64 of (3, 2)'"),
        ({"backward_ns": np.ones((3, 1))}, "backward_ns: wrong shape or type (got 'float64 of (3, 1)'"),
        ({"after_ns": np.array([0, -2, 0])}, "after_ns: a negative time (got -2"),
    ],
)
def test_times_that_are_none(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(times_of(3, 1, 1, 1, 1), **change)
    assert said in str(caught.value)


def test_what_cannot_be_scheduled_or_counted() -> None:
    times = times_of(3, 1, 1, 2, 0)
    with pytest.raises(InputError, match="a step has a micro-batch"):
        makespan_ns(Schedule.GPIPE, 0, times)
    with pytest.raises(InputError, match="zbv has 2 virtual stages"):
        makespan_ns(Schedule.ZBV, 4, times)
    with pytest.raises(InputError, match="too long to be counted"):
        makespan_ns(Schedule.GPIPE, 2**60, times)
    with pytest.raises(InputError, match="three axes"):
        makespans_ns(Schedule.GPIPE, 4, times)
    with pytest.raises(InputError, match="two axes"):
        makespan_ns(Schedule.GPIPE, 4, random_times(random.Random(0), 3, 1, longest=5, cases=(2,)))


def test_once_warm_nothing_is_compiled_any_more() -> None:
    """With arrays that cannot be written to, or are parts of others, and no other types of arrays."""
    warm()
    before = {
        name: len(value.load().signatures) for name, value in vars(module).items() if isinstance(value, CompiledLoop)
    }
    assert len(before) == 5
    rng = random.Random(3)
    for schedule in Schedule:
        many = random_times(rng, 3, schedule.default_laps, longest=9, cases=(4,))
        for array in (getattr(many, name) for name in PipelineTimes.__slots__ if name != "overlaps"):
            array.flags.writeable = False
        makespans_ns(schedule, 30, many)
        wide = replace(times_of(3, schedule.default_laps, 1, 2, 3), before_ns=np.arange(9)[::3])
        makespan_ns(schedule, 300, wide)
    assert before == {name: len(getattr(module, name).load().signatures) for name in before}
