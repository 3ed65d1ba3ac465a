"""The actor protocol: published rhythms, admission against exhaustive exploration, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.engine import run
from strategy.base.errors import DeadlockError, PlanError
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.program.protocol import Protocol, admit
from strategy.program.timeline import by_stream
from strategy.sbp.tensor import DType


def register(name: str, rank: int = 0, *, blocks: int = 1, initial: int = 0) -> Register:
    return Register(name, rank, (1,), DType.FLOAT32, blocks=blocks, initial=initial)


def chain(durations: Sequence[int], *, blocks: int) -> Program:
    """Actors in a row, each on its own stream of one rank."""
    last = len(durations) - 1
    return Program(
        ranks=1,
        registers=tuple(register(f"r{i}", blocks=blocks) for i in range(last)),
        actors=tuple(
            Actor(
                f"a{i}",
                0,
                ActKind.COMPUTE,
                reads=(Port(i - 1),) if i else (),
                writes=(Port(i),) if i < last else (),
                work=Work(duration),
            )
            for i, duration in enumerate(durations)
        ),
        streams=tuple(Stream(0, f"s{i}", (i,)) for i in range(len(durations))),
    )


def starts(program: Program, steps: int) -> list[list[int]]:
    return [[record.start_ns for record in records] for records in by_stream(run(program, steps).timeline)]


def test_two_blocks_let_neighbours_work_at_once() -> None:
    # OneFlow's figure: three actors of unit time, all at work from time 2 on.
    assert starts(chain([1, 1, 1], blocks=2), 6) == [[k + i for k in range(6)] for i in range(3)]


def test_one_block_makes_neighbours_take_turns() -> None:
    assert starts(chain([1, 1, 1], blocks=1), 6) == [[2 * k + i for k in range(6)] for i in range(3)]


@pytest.mark.parametrize(("blocks", "period"), [(1, 4), (2, 3), (3, 3)])
def test_back_pressure_gives_the_period_of_the_slowest(blocks: int, period: int) -> None:
    loader, *_, slow = starts(chain([1, 1, 1, 3], blocks=blocks), 20)
    for found in (loader, slow):
        assert {later - sooner for sooner, later in pairwise(found[10:])} == {period}


def test_loader_runs_ahead_until_the_blocks_are_full() -> None:
    assert starts(chain([1, 1, 1, 3], blocks=2), 8)[0] == [0, 1, 2, 3, 4, 5, 8, 11]


def test_the_choices_of_blocks_are_those_that_acts_have() -> None:
    """Three blocks written behind an initial piece and read in turn with two: six acts until the turns are the same."""
    program = Program(
        1,
        (register("r", blocks=3, initial=1), register("s", blocks=2)),
        (
            Actor("a", 0, ActKind.COMPUTE, writes=(Port(0),), work=Work(1)),
            Actor("b", 0, ActKind.COMPUTE, reads=(Port(0),), writes=(Port(1),), work=Work(1)),
            Actor("c", 0, ActKind.COMPUTE, reads=(Port(1),), work=Work(1)),
        ),
        tuple(Stream(0, f"s{i}", (i,)) for i in range(3)),
    )
    protocol = Protocol(program, steps=30)
    for actor, choices in ((0, 3), (1, 6), (2, 2)):
        found = list(protocol.choices_of_blocks(actor))
        assert len(found) == len(set(found)) == choices
        assert set(found) == {protocol.blocks_of(actor, number) for number in range(30)}


def test_a_stream_is_busy_until_credits_are_passed_on() -> None:
    protocol = Protocol(chain([1, 1], blocks=1), steps=1)
    act = protocol.issue(0, 0)
    assert (protocol.is_busy(0), protocol.is_busy(1), protocol.head(1)) == (True, False, None)
    protocol.issued(act)
    assert (protocol.is_busy(0), protocol.head(1)) == (False, 1)


def test_acts_that_share_a_piece_have_the_same_choice_of_blocks() -> None:
    program = Program(
        1,
        (register("r", blocks=3),),
        (Actor("a", 0, ActKind.COMPUTE, writes=(Port(0, 2),), work=Work(1), acts_per_step=2),),
        (Stream(0, "s", (0, 0)),),
    )
    assert list(Protocol(program, steps=9).choices_of_blocks(0)) == [((), (0,)), ((), (1,)), ((), (2,))]


def test_credits_are_passed_on_once() -> None:
    """By the end of an act at the latest."""
    protocol = Protocol(chain([1, 1], blocks=2), steps=3)
    for early in (False, True):
        act = protocol.issue(0, 0)
        if early:
            protocol.issued(act)
            assert (protocol.published[0], protocol.acts_done[0]) == (2, 1)
        protocol.done(act)
        assert protocol.published[0] == protocol.acts_done[0] == act.number + 1
        assert protocol.remaining == 6 - act.number - 1


def test_a_block_waits_for_those_alone_who_still_read_it() -> None:
    program = Program(
        1,
        (register("r"),),
        (
            Actor("a", 0, ActKind.COMPUTE, writes=(Port(0),), work=Work(1)),
            *(Actor(name, 0, ActKind.COMPUTE, reads=(Port(0),), work=Work(1)) for name in "bc"),
        ),
        tuple(Stream(0, f"s{i}", (i,)) for i in range(3)),
    )
    protocol = Protocol(program, steps=2)
    protocol.done(protocol.issue(0, 0))
    reason = "needs a free block of r (has 1)"
    assert list(protocol.waits_for(0)) == [(1, reason), (2, reason)]
    protocol.done(protocol.issue(1, 1))
    assert list(protocol.waits_for(0)) == [(2, reason)]
    protocol.done(protocol.issue(2, 2))
    assert list(protocol.waits_for(0)) == []
    assert protocol.head(0) == 0


def test_deadlock_prints_the_cycle() -> None:
    program = replace(chain([1, 1], blocks=1), streams=(Stream(0, "only", (1, 0)),))
    with pytest.raises(DeadlockError) as caught:
        admit(program)
    assert caught.value.cycle == (
        "a1 (rank 0) waits for a0 (rank 0): needs piece 0 of r0",
        "a0 (rank 0) waits for a1 (rank 0): comes before it in stream only",
    )
    assert "a1 (rank 0) waits for a0 (rank 0): needs piece 0 of r0" in str(caught.value)


def test_collectives_in_opposite_orders_are_refused_with_both_named() -> None:
    actors = [Actor(f"c{n}", rank, ActKind.ALL_REDUCE, rendezvous=n) for rank in range(2) for n in range(2)]
    program = Program(2, (), tuple(actors), (Stream(0, "main", (0, 1)), Stream(1, "main", (3, 2))))
    with pytest.raises(DeadlockError, match=r"c0 \(rank 0\) waits for c0 \(rank 1\): meets it in rendezvous 0"):
        admit(program)


def test_few_blocks_on_a_reconvergent_path_are_refused() -> None:
    # a feeds c directly and through b, which needs two pieces before it hands on one.
    ports = (Port(0), Port(1))
    actors = (
        Actor("a", 0, ActKind.COMPUTE, writes=ports, acts_per_step=2),
        Actor("b", 0, ActKind.COMPUTE, reads=(Port(1),), writes=(Port(2, 2),), acts_per_step=2),
        Actor("c", 0, ActKind.COMPUTE, reads=(Port(0), Port(2, 2)), acts_per_step=2),
    )
    streams = tuple(Stream(0, f"s{i}", (i, i)) for i in range(3))
    for blocks, lives in ((1, False), (2, True)):
        direct = register("direct", blocks=blocks)
        program = Program(1, (direct, register("through b"), register("sum")), actors, streams)
        if lives:
            admit(program)
        else:
            with pytest.raises(DeadlockError, match="free block of direct"):
                admit(program)


def faulty(change: str) -> Program:
    program = chain([1, 1], blocks=1)
    a0, a1 = program.actors
    meet = replace(a0, rendezvous=0), replace(a1, rendezvous=0)
    return {
        "acts more often than it stands": replace(program, actors=(replace(a0, acts_per_step=2), a1)),
        "two producers": replace(program, actors=(a0, replace(a1, writes=(Port(0),)))),
        "in no stream": replace(program, streams=(program.streams[0],)),
        "in two streams": replace(program, streams=(*program.streams, Stream(0, "again", (1,)))),
        "register of another rank": replace(program, ranks=2, registers=(register("r0", 1),)),
        "stream of another rank": replace(program, ranks=2, streams=(program.streams[0], Stream(1, "s1", (1,)))),
        "more pieces than blocks": replace(program, registers=(register("r0", initial=2),)),
        "rates differ": replace(
            program, actors=(a0, replace(a1, acts_per_step=2)), streams=(program.streams[0], Stream(0, "s1", (1, 1)))
        ),
        "no whole piece": replace(program, actors=(replace(a0, writes=(Port(0, 2),)), a1)),
        "rendezvous with itself": replace(program, actors=meet),
        "dynamic rendezvous": replace(
            program, actors=(meet[0], a1), streams=(Stream(0, "s0", (0,), dynamic=True), program.streams[1])
        ),
    }[change]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("acts more often than it stands", "another number of times"),
        ("two producers", "two producers"),
        ("in no stream", "in no stream"),
        ("in two streams", "in two streams"),
        ("register of another rank", "cannot use this register"),
        ("stream of another rank", "of another rank"),
        ("more pieces than blocks", "cannot use this register"),
        ("rates differ", "differ in pieces per step"),
        ("no whole piece", "cannot use this register"),
        ("rendezvous with itself", "members of a rendezvous do not match"),
        ("dynamic rendezvous", "rendezvous in a dynamic stream"),
    ],
)
def test_inconsistent_programs_are_refused(change: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        admit(faulty(change))


def test_pieces_go_round_the_blocks_after_those_that_are_there_from_the_start() -> None:
    program = replace(chain([1, 1], blocks=3), registers=(register("r0", blocks=3, initial=1),))
    protocol = Protocol(program, steps=4)
    written, read = [], []
    for _ in range(4):
        made = protocol.issue(0, 0)
        protocol.done(made)
        taken = protocol.issue(1, 1)
        protocol.done(taken)
        written += made.write_blocks
        read += taken.read_blocks
    assert (written, read) == ([1, 2, 0, 1], [0, 1, 2, 0])
    assert (protocol.head(0), protocol.head(1)) == (None, None), "no act is left of these steps"
    protocol.extend(2)
    for left in (4, 2):
        assert (protocol.head(0), protocol.remaining) == (0, left)
        protocol.done(protocol.issue(0, 0))
        protocol.done(protocol.issue(1, 1))
    assert protocol.finished


def test_what_was_there_from_the_start_takes_blocks() -> None:
    program = replace(chain([1, 1], blocks=3), registers=(register("r0", blocks=3, initial=1),))
    protocol = Protocol(program, steps=4)
    for _ in range(2):
        assert protocol.head(0) == 0
        protocol.done(protocol.issue(0, 0))
    assert protocol.head(0) is None, "three pieces, and none returned"
    assert list(protocol.waits_for(0)) == [(1, "needs a free block of r0 (has 3)")]


def test_a_dynamic_stream_takes_the_most_urgent_act_and_then_the_first() -> None:
    actors = tuple(
        Actor(f"a{i}", 0, ActKind.COMPUTE, priority=priority, acts_per_step=1)
        for i, priority in enumerate((0, 2, 1, 2))
    )
    protocol = Protocol(Program(1, (), actors, (Stream(0, "any", (0, 1, 2, 3), dynamic=True),)), steps=1)
    order = []
    while (actor := protocol.head(0)) is not None:
        order.append(actor)
        act = protocol.issue(0, actor)
        assert protocol.head(0) is None, "the stream is busy"
        protocol.done(act)
    assert order == [1, 3, 2, 0]
    assert protocol.remaining == 0


def test_what_nobody_writes_is_there_for_ever_or_never() -> None:
    reader = Program(
        1, (register("w", initial=1),), (Actor("a", 0, ActKind.COMPUTE, reads=(Port(0),)),), (Stream(0, "s", (0,)),)
    )
    admit(reader, steps=3)
    with pytest.raises(DeadlockError, match=r"a \(rank 0\) waits for a \(rank 0\): can never act"):
        admit(replace(reader, registers=(register("w"),)))
