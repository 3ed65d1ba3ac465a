"""Acts are issued in launch order, an event behind each; the host runs ahead by so many acts and no more."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from executor.runtime.issuing import Issuer
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream
from strategy.program.protocol import Act, Protocol
from strategy.sbp.tensor import DType


@dataclass(eq=False)
class Mark:
    """An event: where it stands, and whether the device has come by."""

    at: str = ""
    passed: bool = False


@dataclass(eq=False)
class Written:
    """Streams that only note what they are given."""

    given: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def open(self, name: str) -> str:
        return name

    def event(self, *, timed: bool) -> Mark:
        return Mark()

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        self.given.append(f"{stream}:")
        yield

    def record(self, event: Mark, stream: str) -> None:
        event.at, event.passed = f"{stream}{sum(mark.at.startswith(stream) for mark in self.marks)}", False
        self.marks.append(event)

    def wait(self, stream: str, event: Mark) -> None:
        self.given.append(f"{stream} waits for {event.at}")

    def query(self, event: Mark) -> bool:
        return event.passed

    def synchronize(self, event: Mark) -> None:
        assert event.passed
        self.given.append(f"host knows {event.at}")

    def capture(self, stream: str, run: Callable[[], None]) -> list[str]:
        before = len(self.given)
        run()
        found = self.given[before:]
        self.given[before:] = ["captured"]
        return found

    def replay(self, graph: list[str], stream: str) -> None:
        self.given.append(f"graph of {' '.join(graph)}")

    event_cost_ns = 0

    def time_ns(self, event: Mark) -> int:
        return 7


def two_streams() -> Program:
    """`make` on one stream, `take` on another, two blocks between them, twice a step."""
    actors = (
        Actor("make", 0, ActKind.COMPUTE, (), (Port(0),), 2),
        Actor("take", 0, ActKind.COMPUTE, (Port(0),), (), 2),
    )
    streams = Stream(0, "s", (0, 0)), Stream(0, "t", (1, 1))
    return Program(1, (Register("r", 0, (1,), DType.FLOAT32, blocks=2),), actors, streams)


def launch(issuer: Issuer, protocol: Protocol, streams: Written) -> str:
    """Issue the next run; gives its actors' names."""
    names = [protocol.program.actors[actor].name for actor in issuer.next_run]

    def take() -> list[tuple[Act, Callable[[], None]]]:
        found = []
        for actor, name in zip(issuer.next_run, names, strict=True):
            act = protocol.issue(protocol.stream_of(actor), actor)
            protocol.issued(act)
            found.append((act, partial(streams.given.append, name)))
        return found

    issuer.issue(take, lambda act: None)
    return " ".join(names)


def test_acts_go_out_in_the_order_of_the_list_and_wait_for_events_of_other_streams() -> None:
    program, streams = two_streams(), Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=False)
    protocol = Protocol(program, steps=2)
    issuer.extend(2)
    names = [launch(issuer, protocol, streams) for _ in range(8)]
    assert names == ["make", "take"] * 4 or names[:4] * 2 == names
    assert issuer.next_run == ()
    assert streams.given.count("t waits for s0") == 1
    assert "s waits for t0" in streams.given, "the first block, written again"
    assert [mark.at for mark in streams.marks].count("s3") == 1


def test_the_host_is_ahead_by_so_many_acts_and_goes_on_when_the_oldest_has_passed() -> None:
    program, streams = two_streams(), Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=True, ahead=3)
    protocol = Protocol(program, steps=2)
    issuer.extend(2)
    for _ in range(3):
        assert not issuer.is_ahead
        launch(issuer, protocol, streams)
    assert issuer.is_ahead
    assert list(issuer.ended()) == []
    oldest = issuer.oldest()
    assert oldest is not None
    streams.marks[1].passed = True
    (ended,) = issuer.ended()
    assert ended.act == oldest
    assert issuer.times_ns(ended) == (7, 7)
    assert not issuer.is_ahead


@pytest.mark.parametrize("ahead", [1, 3, 1024])
def test_an_act_of_a_slow_stream_keeps_its_events_while_fast_streams_go_on(ahead: int) -> None:
    """Two streams that know nothing of each other: all that the fast one has done does not let the host go on."""
    actors = (Actor("slow", 0, ActKind.COMPUTE, (), ()), Actor("fast", 0, ActKind.COMPUTE, (), ()))
    program = Program(1, (), actors, (Stream(0, "s", (0,)), Stream(0, "t", (1,))))
    streams = Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=True, ahead=ahead)
    protocol = Protocol(program, steps=5)
    issuer.extend(5)
    slow, first = 0, launch(issuer, protocol, streams)
    assert first == "slow"
    for _ in range(10):
        for mark in streams.marks:
            mark.passed |= mark.at.startswith("t")
        list(issuer.ended())
        if not issuer.is_ahead:
            slow += launch(issuer, protocol, streams) == "slow"
    assert slow == 0, "its events were recorded anew before the device had come by them"
    for mark in streams.marks:
        mark.passed = True
    list(issuer.ended())
    assert not issuer.is_ahead


def test_acts_that_are_launched_together_have_one_event_behind_the_last() -> None:
    found = Port(0)
    actors = (
        *(Actor(name, 0, ActKind.COMPUTE, (), (found,) * (name == "c")) for name in "abc"),
        Actor("other", 0, ActKind.COMPUTE, (found,), ()),
    )
    program = Program(
        1, (Register("r", 0, (1,), DType.FLOAT32),), actors, (Stream(0, "s", (0, 1, 2)), Stream(0, "t", (3,)))
    )
    streams = Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=False, batched=[0, 1, 2])
    protocol = Protocol(program, steps=1)
    issuer.extend(1)
    assert issuer.launches == (0, 1, 2, 3)
    assert [launch(issuer, protocol, streams) for _ in range(2)] == ["a b c", "other"]
    assert sorted(mark.at for mark in streams.marks) == ["s0", "t0"]
    assert len(list(issuer.ended())) == 0
    for mark in streams.marks:
        mark.passed = True
    parts = {one.act.actor: one.part for one in issuer.ended()}
    assert parts[3] == (0, 1)
    shares = [parts[actor][1] - parts[actor][0] for actor in range(3)]
    assert sum(shares) == pytest.approx(1)
    assert shares[2] == pytest.approx(5 * shares[0]) == pytest.approx(5 * shares[1]), "by bytes: c has a register"
    assert parts[0][1] == parts[1][0] < parts[1][1] == parts[2][0]


def chain(names: str, blocks: int = 1) -> Program:
    """Acts of one stream, each of which reads what the one before it wrote."""
    actors = tuple(
        Actor(name, 0, ActKind.COMPUTE, (Port(i - 1),) if i else (), (Port(i),)) for i, name in enumerate(names)
    )
    registers = tuple(Register(name, 0, (1,), DType.FLOAT32, blocks=blocks) for name in names)
    return Program(1, registers, actors, (Stream(0, "s", tuple(range(len(names)))),))


@pytest.mark.parametrize("blocks", [1, 2])
def test_acts_that_repeat_are_captured_when_they_come_again_and_replayed_by_choice_of_blocks(blocks: int) -> None:
    program, streams = chain("abcd", blocks), Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=True, ahead=16)
    protocol = Protocol(program, steps=0)
    for step in range(3 * blocks):
        issuer.group([0, 1, 2, 3])
        issuer.extend(1)
        protocol.extend(1)
        streams.given.clear()
        assert launch(issuer, protocol, streams) == "a b c d"
        wanted = {0: ["a", "b", "c", "d"], 1: ["captured", "graph of a b c d"], 2: ["graph of a b c d"]}
        assert streams.given == ["s:", *wanted[step // blocks]]
        for mark in streams.marks:
            mark.passed = True
        ended = list(issuer.ended())
        assert [one.part for one in ended] == [(0, 1)] * 4
        assert all(one.until is other.begin for one, other in itertools.pairwise(ended)), "an event before each"
        assert ended[-1].until is ended[0].end
    issuer.group([0, 1, 2, 3], timed=False)
    issuer.extend(1)
    protocol.extend(1)
    launch(issuer, protocol, streams)
    assert streams.given[-4:] == ["a", "b", "c", "d"], "a graph without events is another one"
    for mark in streams.marks:
        mark.passed = True
    assert {one.begin for one in issuer.ended()} == {None}


def test_what_an_event_takes_is_not_an_acts() -> None:
    """Of acts before others of their run; the last ends at the event that is there anyway."""
    program, streams = chain("abc"), Written()
    streams.event_cost_ns = 2
    clock = itertools.count(0, 10)
    times = defaultdict[int, int](lambda: next(clock))
    streams.time_ns = lambda event: times[id(event)]  # type: ignore[method-assign]
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=True, ahead=16)
    protocol = Protocol(program, steps=1)
    issuer.group([0, 1, 2])
    issuer.extend(1)
    launch(issuer, protocol, streams)
    for mark in streams.marks:
        mark.passed = True
    assert [issuer.times_ns(one) for one in issuer.ended()] == [(0, 8), (10, 18), (20, 30)]


@pytest.mark.parametrize("reported", [0, 1])
def test_a_run_ends_where_another_stream_waits_for_an_act_and_behind_what_is_reported(reported: int) -> None:
    """`far` reads what `b` writes, and `b` waits until it has; `c` does not repeat."""
    actors = (
        *(Actor(name, 0, ActKind.COMPUTE, (), (Port(0),) if name == "b" else ()) for name in "abcde"),
        Actor("far", 0, ActKind.COMPUTE, (Port(0),), ()),
    )
    registers = (Register("r", 0, (1,), DType.FLOAT32),)
    program = Program(1, registers, actors, (Stream(0, "s", tuple(range(5))), Stream(0, "t", (5,))))
    issuer = Issuer(program, 0, Written(), host=(), staged={}, timed=False)
    issuer.group([0, 1, 3, 4, 5], [3] * reported)
    issuer.extend(1)
    protocol, streams = Protocol(program, steps=1), Written()
    runs = [launch(issuer, protocol, streams) for _ in iter(lambda: issuer.next_run, ())]
    assert sorted(runs) == sorted(["a", "b", "c", *(["d", "e"] if reported else ["d e"]), "far"])


def test_a_run_is_a_part_of_what_the_host_may_be_ahead() -> None:
    program, streams = chain("abcdefgh"), Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=False, ahead=8)
    issuer.group(range(8))
    issuer.extend(2)
    protocol = Protocol(program, steps=2)
    runs = []
    while not issuer.is_ahead:
        runs.append(launch(issuer, protocol, streams))
    assert runs == ["a b", "c d", "e f", "g h"]


def test_after_the_last_act_the_host_may_use_everything() -> None:
    program, streams = two_streams(), Written()
    issuer = Issuer(program, 0, streams, host=(), staged={}, timed=False)
    protocol = Protocol(program, steps=1)
    issuer.extend(1)
    for _ in range(4):
        launch(issuer, protocol, streams)
    for mark in streams.marks:
        mark.passed = True
    assert len(list(issuer.ended())) == 4
    issuer.join()
    assert streams.given[-2:] == ["host knows s1", "host knows t1"]


@pytest.mark.parametrize("done", [False, True])
def test_an_actor_of_the_host_needs_what_it_reads_done_and_others_need_it_issued(done: bool) -> None:
    actors = (
        Actor("a", 0, ActKind.COMPUTE, (), (Port(0),)),
        Actor("device", 0, ActKind.COMPUTE, (Port(0),), ()),
        Actor("host", 0, ActKind.COMPUTE, (Port(0),), ()),
    )
    register = Register("r", 0, (1,), DType.FLOAT32)
    program = Program(1, (register,), actors, tuple(Stream(0, name, (at,)) for at, name in enumerate("stu")))
    protocol = Protocol(program, steps=1, host=[2])
    act = protocol.issue(0, 0)
    assert not protocol.may_act(1)
    protocol.issued(act)
    if done:
        protocol.done(act)
    assert protocol.may_act(1)
    assert protocol.may_act(2) is done
    assert protocol.remaining == 3 - done
