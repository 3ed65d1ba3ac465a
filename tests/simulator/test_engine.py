"""The event engine against the reference engine; sharing by hand, conservation, and the monitor's verdict."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simulator import reference
from simulator.acts import Acts
from simulator.conservation import check_conservation
from simulator.engine import Jitter, run
from simulator.resources import SharedResource
from strategy.base.errors import DeadlockError, InternalError, PlanError
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.program.timeline import by_stream, stream_sequences
from strategy.sbp.tensor import DType
from tests.support.long_parameters import long_but
from tests.support.monitor import check_trace
from tests.support.random_programs import coverage, live_programs, random_program


def each(delay: Callable[[int, int], int]) -> Jitter:
    """Jitter by act."""
    return np.vectorize(delay, otypes=[np.int64])


def delays(seed: int, largest_ns: int = 500) -> Jitter:
    """Jitter that depends on nothing but the seed and the act."""
    return each(lambda actor, number: random.Random(f"{seed}/{actor}/{number}").randint(0, largest_ns))


def straggling(seed: int, program: Program) -> Jitter:
    """One rank is slower than the others, and every act a little slower at random."""
    slow, wobble = seed % program.ranks, delays(seed, 60)
    return each(lambda actor, number: int(wobble(actor, number)) + 400 * (program.actors[actor].rank == slow))


def side_by_side(*works: Work, rates: dict[str, float]) -> Program:
    """One actor per work, each on its own stream: all start at 0."""
    return Program(
        ranks=1,
        registers=(),
        actors=tuple(Actor(f"a{i}", 0, ActKind.COMPUTE, work=work) for i, work in enumerate(works)),
        streams=tuple(Stream(0, f"s{i}", (i,)) for i in range(len(works))),
        resources=rates,
    )


def ends(program: Program) -> list[int]:
    return [records[-1].end_ns for records in by_stream(run(program, 1).timeline)]


GB = 1e9


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ([Work(5, (("x", 1000),))], [1005]),
        ([Work(0, (("x", 1000),)), Work(0, (("x", 1000),))], [2000, 2000]),
        # The short one gets half until 2000; the long one has 2000 of its 3000 bytes left then, alone.
        ([Work(0, (("x", 1000),)), Work(0, (("x", 3000),))], [2000, 4000]),
        # The second joins at 500: 500 bytes are left of the first, shared until 1500, then 1000 - 500 alone.
        ([Work(0, (("x", 1000),)), Work(500, (("x", 1000),))], [1500, 2000]),
        # Thirds: no rounding although 1000 / 3 is not whole.
        ([Work(0, (("x", 1000),))] * 3 + [Work(1000, (("x", 250),))], [3250, 3250, 3250, 2000]),
        # Two resources are independent; the act ends when the slower is through.
        ([Work(0, (("x", 1000), ("y", 1000))), Work(0, (("y", 1000),))], [4000, 4000]),
        # One act that names a resource twice is one user of it.
        ([Work(0, (("x", 500), ("x", 500))), Work(0, (("x", 1000),))], [2000, 2000]),
        ([Work(7, (("x", 0),))], [7]),
    ],
)
def test_sharing_by_hand(works: list[Work], expected: list[int]) -> None:
    assert ends(side_by_side(*works, rates={"x": GB, "y": GB / 2})) == expected


def test_transfer_time_is_rounded_up_to_whole_nanoseconds() -> None:
    assert ends(side_by_side(Work(0, (("x", 10),)), rates={"x": 3 * GB})) == [4]


def test_shares_without_rounding_errors_up_to_sixteen() -> None:
    for sharers in range(1, 17):
        flow: SharedResource[int] = SharedResource("x", GB)
        for act in range(sharers):
            flow.join(0, act, 100)
        through = [(time_ns, act) for time_ns in range(1, sharers * 100 + 1) for act in flow.leave(time_ns)]
        assert through == [(sharers * 100, act) for act in range(sharers)]
        assert (flow.served_bytes, flow.busy_ns) == (sharers * 100, sharers * 100)


def test_rendezvous_begins_with_the_last_and_ends_for_all_at_once() -> None:
    early = Actor("early", 0, ActKind.ALL_REDUCE, rendezvous=0, work=Work(10, (("x", 600),)))
    late = replace(early, name="late", rank=1, work=Work(10, (("x", 400),)))
    before = Actor("before", 1, ActKind.COMPUTE, work=Work(90))
    program = Program(2, (), (early, late, before), (Stream(0, "m", (0,)), Stream(1, "m", (2, 1))), {"x": GB})
    (first,), (_, second) = by_stream(run(program, 1).timeline)
    assert (first.ready_ns, first.start_ns, first.end_ns) == (0, 90, 1100)
    assert (second.ready_ns, second.start_ns, second.end_ns) == (90, 90, 1100)


def test_dynamic_stream_takes_the_ready_actor_of_highest_priority() -> None:
    actors = tuple(Actor(f"p{p}", 0, ActKind.LOAD, priority=p, work=Work(1)) for p in (1, 3, 2))
    program = Program(1, (), actors, (Stream(0, "loader", (0, 1, 2), dynamic=True),))
    (records,) = by_stream(run(program, 1).timeline)
    assert [record.actor for record in records] == [1, 2, 0]


def test_same_program_same_timeline() -> None:
    for seed, program in live_programs(20):
        first = run(program, 2, jitter=delays(seed))
        again = run(random_program(seed), 2, jitter=delays(seed))
        assert first.timeline == again.timeline


def test_static_streams_do_not_depend_on_timing() -> None:
    moved = 0
    for _, program in live_programs(40):
        plain, delayed = run(program, 2).timeline, run(program, 2, jitter=delays(1, 5000)).timeline
        moved += plain.records != delayed.records
        found = zip(program.streams, stream_sequences(plain), stream_sequences(delayed), strict=True)
        assert all(before == after for stream, before, after in found if not stream.dynamic)
    assert moved == 40


@pytest.mark.parametrize("programs", long_but([60, 200], 0))
def test_monitor_accepts_every_trace(programs: int) -> None:
    seen: Counter[str] = Counter()
    for seed, program in live_programs(programs):
        assert check_trace(program, run(program, 3, jitter=delays(seed)).timeline.records) == []
        found = coverage(program)
        seen.update(
            several_ready=found.most_ready > 1,
            contested=found.contested_dynamic,
            large_rendezvous=found.largest_rendezvous > 2,
            state=found.states > 0,
            rates=found.rates > 1,
            blocks=found.several_blocks,
        )
    assert seen["several_ready"] >= 0.9 * programs
    assert min(seen[name] for name in ("large_rendezvous", "state", "rates", "blocks")) >= 0.3 * programs
    assert seen["contested"] >= 0.05 * programs


@pytest.mark.parametrize("programs", long_but([60, 200], 0))
def test_engine_hangs_exactly_where_admission_refuses(programs: int) -> None:
    hangs = 0
    for seed in range(programs):
        program = random_program(seed, swap_probability=0.5)
        if coverage(program).live:
            run(program, 2)
        else:
            hangs += 1
            with pytest.raises(DeadlockError, match="waits for"):
                run(program, 2)
    assert hangs >= 0.15 * programs


def test_unknown_resource_is_refused() -> None:
    with pytest.raises(PlanError, match="unknown resource"):
        run(side_by_side(Work(0, (("z", 1),)), rates={"x": GB}), 1)


def test_impossible_rate_is_refused() -> None:
    with pytest.raises(PlanError, match="not a possible rate"):
        run(side_by_side(Work(0, (("x", 1),)), rates={"x": 0.0}), 1)


def test_lower_bound_is_the_time_where_nothing_is_shared() -> None:
    equal = 0
    for _, program in live_programs(60, resources=False):
        result = run(program, 1)
        assert result.lower_bound_ns <= result.timeline.makespan_ns
        equal += result.lower_bound_ns == result.timeline.makespan_ns
    assert equal >= 20


def test_the_busiest_resource_bounds_the_time() -> None:
    """Two streams share it while each has a rest of its own, and neither is busy for as long as it is."""
    ahead = Actor("ahead", 0, ActKind.COMPUTE, writes=(Port(0),), work=Work(900))
    late = Actor("late", 0, ActKind.ALL_REDUCE, reads=(Port(0),), work=Work(0, (("x", 1000),)))
    early = Actor("early", 0, ActKind.ALL_GATHER, work=Work(0, (("x", 1000),)))
    streams = tuple(Stream(0, name, (index,)) for index, name in enumerate(("compute", "inter", "intra")))
    register = Register("r", 0, (1,), DType.FLOAT32)
    found = run(Program(1, (register,), (ahead, late, early), streams, {"x": GB}), 1)
    assert [records[-1].end_ns - records[0].start_ns for records in by_stream(found.timeline)] == [900, 1100, 1100]
    assert found.busiest_ns == found.lower_bound_ns == found.timeline.makespan_ns == 2000


@pytest.mark.parametrize("fault", ["busy", "overlap", "backwards", "short"])
def test_conservation_catches(fault: str) -> None:
    program = side_by_side(Work(5, (("x", 1000),)), rates={"x": GB})
    acts, busy, critical_ns = run(program, 1).acts, {"x": 1000}, 1005
    assert check_conservation(program, acts, critical_path_ns=critical_ns, busy_ns=busy) == 1005
    if fault == "busy":
        busy = {"x": 900}
    elif fault == "overlap":
        twice = [np.repeat(column, 2) for column in (acts.actor, acts.number, acts.start_ns, acts.end_ns)]
        acts = Acts(1, 2 * acts.first, *twice, ready_ns=np.zeros(2, dtype=np.int64))
    elif fault == "backwards":
        acts = replace(acts, start_ns=acts.end_ns + 1)
    else:
        critical_ns = 1006
    with pytest.raises(InternalError):
        check_conservation(program, acts, critical_path_ns=critical_ns, busy_ns=busy)


@pytest.mark.parametrize(("compared", "least", "usual"), long_but([(60, 2, 8), (500, 30, 100)], 0))
def test_it_finds_what_the_protocol_driven_act_by_act_finds(compared: int, least: int, usual: int) -> None:
    """Every start, end and readiness of up to three steps, with jitter and stragglers."""
    seen: Counter[str] = Counter()
    seed = 0
    while seen["compared"] < compared:
        seed += 1
        program = random_program(seed)
        found = coverage(program)
        if not found.live:
            continue
        jitter = (None, delays(seed, 900), straggling(seed, program))[seed % 3]
        steps = 1 + seed % 5 % 3
        ours, plain = run(program, steps, jitter=jitter), reference.run(program, steps, jitter=jitter)
        assert ours.timeline == plain.timeline, seed
        assert ours.resource_busy_ns == plain.resource_busy_ns, seed
        assert ours.lower_bound_ns <= plain.timeline.makespan_ns
        seen.update(
            compared=1,
            jitter=seed % 3 == 1,
            stragglers=seed % 3 == 2,
            several_steps=steps > 1,
            several_ready=found.most_ready > 1,
            contested_dynamic=found.contested_dynamic,
            large_rendezvous=found.largest_rendezvous > 2,
            state=found.states > 0,
            rates=found.rates > 1,
            blocks=found.several_blocks,
            bytes=any(actor.work.demands for actor in program.actors),
        )
    print(f"{seed} seeds: {dict(sorted(seen.items()))}")
    assert min(seen.values()) >= least
    assert min(seen[name] for name in seen if name != "contested_dynamic") >= usual


def test_transfers_of_hours_are_counted_to_the_nanosecond() -> None:
    """Where shares of a nanosecond would not fit 64 bits, whole ones are counted."""
    hour_ns = 3600 * 10**9
    works = [Work(0, (("x", hour_ns),)), Work(0, (("x", 3 * hour_ns),)), Work(hour_ns, (("x", hour_ns),))]
    found = reference.run(side_by_side(*works, rates={"x": GB}), 1).timeline
    assert ends(side_by_side(*works, rates={"x": GB})) == [record.end_ns for record in found.records]


def test_what_takes_centuries_is_refused() -> None:
    with pytest.raises(PlanError, match="too long to be counted"):
        run(side_by_side(Work(2**62), Work(2**62), rates={}), 1)
