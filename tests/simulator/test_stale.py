"""What staleness costs and saves, exactly: time, idle share, versions held, updates missed."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from simulator.pipelines import pipeline
from simulator.simulate import Simulation, simulate
from simulator.stage_times import StageTimes
from simulator.stale import pipe_dream_program, stale_workers_program
from strategy.base.errors import InputError
from strategy.program.program import Program
from strategy.program.protocol import admit
from tests.simulator.test_engine import each

SIZES = [(1, 3), (2, 5), (4, 8), (4, 40), (5, 33)]
F, B = 10, 20


def run_of(program: Program) -> Simulation:
    admit(program)
    return simulate(program, steps=1)


def times_of(found: Simulation, actor: str) -> list[tuple[int, int]]:
    """(start, end) of every act of an actor, in order."""
    timeline = found.timeline
    mine = [record for record in timeline.records if timeline.actors[record.actor].name == actor]
    return [(record.start_ns, record.end_ns) for record in sorted(mine, key=lambda record: record.number)]


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_a_pipeline_without_flush_fills_once(stages: int, micro_batches: int) -> None:
    """Idle (p - 1) / (m + p - 1) of the run: 1F1B with a flush pays that again with every step of fewer."""
    found = run_of(pipe_dream_program([StageTimes(F, B)] * stages, micro_batches))
    assert found.timeline.makespan_ns == (micro_batches + stages - 1) * (F + B)
    assert found.idle_share == pytest.approx((stages - 1) / (micro_batches + stages - 1), abs=1e-12)
    flushed = simulate(pipeline(stages, micro_batches, "1f1b", forward_ns=F, backward_ns=B), steps=1)
    assert found.idle_share == flushed.idle_share


def test_once_full_no_stage_waits() -> None:
    """A micro-batch every F + B, from the first backward pass of a stage to its last forward pass."""
    stages, micro_batches = 4, 40
    found = run_of(pipe_dream_program([StageTimes(F, B)] * stages, micro_batches))
    for s in range(stages):
        ends = [end for _, end in times_of(found, f"B{s}")]
        assert {after - before for before, after in pairwise(ends)} == {F + B}


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
@pytest.mark.parametrize("versions", [1, 2, 3, 7])
def test_fewer_versions_are_less_stale_and_more_idle(stages: int, micro_batches: int, versions: int) -> None:
    """Groups of v micro-batches take a way there and back; v = 1 is the pipeline without micro-batches in flight."""
    found = run_of(pipe_dream_program([StageTimes(F, B)] * stages, micro_batches, versions=versions))
    group = min(versions, stages)
    full, rest = divmod(micro_batches - 1, group)
    assert found.timeline.makespan_ns == (full * stages + stages + rest) * (F + B)
    assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == [min(group, stages - s) for s in range(stages)]
    for s in range(stages):
        missed = min(group, stages - s) - 1
        lacking = updates_lacking(found, s)
        assert max(lacking) == min(missed, micro_batches - 1)
        assert versions < stages or lacking == [min(number, missed) for number in range(micro_batches)]


def updates_lacking(found: Simulation, stage: int) -> list[int]:
    """By micro-batch: updates of those before it that its forward pass cannot have seen."""
    updates = [end for _, end in times_of(found, f"U{stage}")]
    starts = [start for start, _ in times_of(found, f"F{stage}")]
    return [number - sum(end <= start for end in updates[:number]) for number, start in enumerate(starts)]


def test_idle_shares_are_those_of_as_many_micro_batches_in_flight() -> None:
    """75, 52.9, 38.5 and 27.3 % of four stages and eight micro-batches."""
    for versions, idle in ((1, 3 / 4), (2, 9 / 17), (3, 5 / 13), (4, 3 / 11), (5, 3 / 11)):
        found = run_of(pipe_dream_program([StageTimes(1, 1)] * 4, 8, versions=versions))
        assert found.idle_share == pytest.approx(idle, abs=1e-12)


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_no_worker_is_further_ahead_than_that(staleness: int) -> None:
    """A slow one holds all up in any case: for it, a step is a step; it is what others miss that grows."""
    steps, fast, slow = 30, 10, 25
    found = run_of(stale_workers_program([fast, slow], steps, staleness))
    assert found.timeline.makespan_ns == steps * slow
    assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == [staleness + 1] * 2
    done = [end for _, end in times_of(found, "step 1")]
    leads = [number - sum(end <= start for end in done) for number, (start, _) in enumerate(times_of(found, "step 0"))]
    assert max(leads) == staleness


@pytest.mark.parametrize(("staleness", "idle"), [(0, 1 / 3), (1, 0.0), (2, 0.0)])
def test_delays_that_take_turns_are_absorbed(staleness: int, idle: float) -> None:
    """Of two workers one takes 30 and one 10, by turns: all wait for the slower of each step, or for nobody."""
    program = stale_workers_program([10, 10], 20, staleness)

    def jitter(actor: int, number: int) -> int:
        name = program.actors[actor].name
        return 20 if name.startswith("step") and (number + int(name[-1])) % 2 == 0 else 0

    found = simulate(program, steps=1, jitter=each(jitter))
    assert found.idle_share == pytest.approx(idle, abs=1e-12)
    assert found.timeline.makespan_ns == (600 if staleness == 0 else 400)


@pytest.mark.parametrize(("staleness", "period_ns"), [(0, 10 + 35), (1, 35), (3, 35)])
def test_an_exchange_hides_behind_the_next_step(staleness: int, period_ns: int) -> None:
    found = run_of(stale_workers_program([10, 10, 10], 12, staleness, exchange_ns=35))
    ends = [end for _, end in times_of(found, "exchange 0")]
    assert {after - before for before, after in pairwise(ends)} == {period_ns}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pipe_dream_program([], 1), "stages: not possible (got 0"),
        (lambda: pipe_dream_program([StageTimes(1, 1)] * 2, 1, versions=0), "versions: not possible (got 0"),
        (lambda: stale_workers_program([], 1, 0), "workers: not possible (got 0"),
        (lambda: stale_workers_program([1], 1, -1), "staleness: not possible (got -1"),
    ],
)
def test_what_there_is_not(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=re.escape(message)):
        make()
