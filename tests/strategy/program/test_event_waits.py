"""Event waits order every act behind those that it follows, and none is there without need; by brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from strategy.program.event_waits import ActWaits, Awaited, StepWaits, awaited_together, event_waits
from strategy.program.launch_list import LaunchList, launch_lists
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream
from strategy.program.protocol import Protocol
from strategy.sbp.tensor import DType
from tests.support.random_programs import live_program

STEPS = 7
Launched = tuple[int, int]
"""Step and position in the launch list."""


def register(name: str, **more: int) -> Register:
    return Register(name, 0, (1,), DType.FLOAT32, **more)


def test_a_pipeline_of_two_streams_by_hand() -> None:
    """`make` fills a block that `take`, on another stream, empties; with two blocks it goes on meanwhile."""
    actors = (
        Actor("make", 0, ActKind.COMPUTE, (), (Port(0),), 3),
        Actor("take", 0, ActKind.COMPUTE, (Port(0),), (), 3),
    )
    program = Program(1, (register("r", blocks=2),), actors, (Stream(0, "s", (0, 0, 0)), Stream(0, "t", (1, 1, 1))))
    first, second, *_ = event_waits(program, 0, (0, 1, 0, 1, 0, 1))
    none = ActWaits()
    takes = [ActWaits(by_stream=(Awaited(position, 0),)) for position in (0, 2, 4)]
    assert first == (none, takes[0], none, takes[1], ActWaits(by_stream=(Awaited(1, 0),)), takes[2])
    assert second[0::2] == tuple(
        ActWaits(by_stream=(awaited,)) for awaited in (Awaited(3, 1), Awaited(5, 1), Awaited(1, 0))
    )


def test_what_a_stream_has_waited_for_before_it_need_not_wait_for_again() -> None:
    """`c` reads what `a` wrote and what `b` made of it on another stream: `b` is done after `a`."""
    actors = (
        Actor("a", 0, ActKind.COMPUTE, (), (Port(0),)),
        Actor("b", 0, ActKind.COMPUTE, (Port(0),), (Port(1),)),
        Actor("c", 0, ActKind.COMPUTE, (Port(0), Port(1)), ()),
    )
    streams = tuple(Stream(0, name, (at,)) for at, name in enumerate("stu"))
    program = Program(1, (register("x"), register("y")), actors, streams)
    first = event_waits(program, 0, (0, 1, 2))[0]
    assert first[2] == ActWaits(by_stream=(Awaited(1, 0),))


def test_the_host_waits_for_what_its_own_acts_follow_and_all_that_is_launched_later_knows() -> None:
    actors = (
        Actor("a", 0, ActKind.COMPUTE, (), (Port(0),)),
        Actor("host", 0, ActKind.COMPUTE, (Port(0),), (Port(1),)),
        Actor("c", 0, ActKind.COMPUTE, (Port(0), Port(1)), ()),
    )
    streams = tuple(Stream(0, name, (at,)) for at, name in enumerate("stu"))
    program = Program(1, (register("x"), register("y")), actors, streams)
    first = event_waits(program, 0, (0, 1, 2), host=[1])[0]
    assert first == (ActWaits(), ActWaits(by_host=(Awaited(0, 0),)), ActWaits())


def test_a_staged_actor_waits_on_the_host_for_the_act_that_took_its_buffer_last() -> None:
    actors = (Actor("load", 0, ActKind.LOAD, (), (Port(0),), 3), Actor("b", 0, ActKind.COMPUTE, (Port(0),), (), 3))
    program = Program(
        1, (register("r", blocks=3),), actors, (Stream(0, "s", (0,), dynamic=True), Stream(0, "t", (1, 1, 1)))
    )
    first = event_waits(program, 0, (0, 1, 0, 1, 0, 1), staged={0: 2})[0]
    assert [act.by_host for act in first] == [(), (), (), (), (Awaited(0, 0),), ()]


class Replayed:
    """What every act is known to come after, written out as sets, under some waits."""

    def __init__(self, program: Program, rank: int, launches: LaunchList, host: frozenset[int]) -> None:
        self.program, self.launches, self.host = program, launches, host
        self.protocol = Protocol(program, steps=STEPS, ranks=[rank])
        self.known: dict[Launched, set[Launched]] = {}
        """Act -> those that are done when it is, as the waits were that were asked about last."""
        self.follows: list[set[Launched]] = []
        self.stream: list[int] = []
        at: dict[tuple[int, int], Launched] = {}
        for step in range(STEPS):
            for position, actor in enumerate(launches):
                at[actor, self.protocol.acts_issued[actor]] = (step, position)
                self.follows.append({at[act] for act in self.protocol.follows(actor) if act[0] not in host})
                self.stream.append(self.protocol.stream_of(actor))
                self.protocol.done(self.protocol.issue(self.stream[-1], actor))

    def unordered(self, waits: tuple[StepWaits, ...]) -> list[Launched]:
        """The acts that do not come after all that they follow."""
        known = self.known
        known.clear()
        of_stream: dict[int, set[Launched]] = {}
        on_stream: dict[int, Launched] = {}
        of_host: set[Launched] = set()
        found = []
        for number, (follows, stream) in enumerate(zip(self.follows, self.stream, strict=True)):
            step, position = divmod(number, len(self.launches))
            act = waits[min(step, len(waits) - 1)][position]
            for one in act.by_host:
                of_host = of_host | known[step - one.steps_ago, one.position]
            if self.launches[position] in self.host:
                follows = follows | ({on_stream[stream]} if stream in on_stream else set())
                mine = of_host
            else:
                mine = of_stream.get(stream, set()) | of_host
                for one in act.by_stream:
                    mine = mine | known[step - one.steps_ago, one.position]
                of_stream[stream] = known[step, position] = mine | {(step, position)}
                on_stream[stream] = (step, position)
            if not follows <= mine:
                found.append((step, position))
        return found


@pytest.mark.parametrize("place", range(10))
def test_waits_are_enough_and_none_is_too_many(place: int) -> None:
    seed, program = live_program(place, seed=700, resources=False)
    lists = launch_lists(program)
    rng = random.Random(seed)
    for rank, launches in enumerate(lists):
        host = frozenset(rng.sample(sorted(set(launches)), min(2, len(set(launches)))) if rng.random() < 0.5 else ())
        waits = event_waits(program, rank, launches, host=host)
        assert len(waits) < STEPS
        replayed = Replayed(program, rank, launches, host)
        assert replayed.unordered(waits) == []
        for step, steps_waits in enumerate(waits):
            for position, act in enumerate(steps_waits):
                for side in ("by_host", "by_stream"):
                    for one in getattr(act, side):
                        left = tuple(other for other in getattr(act, side) if other != one)
                        changed = list(steps_waits)
                        changed[position] = replace(act, **{side: left})
                        mutant = (*waits[:step], tuple(changed), *waits[step + 1 :])
                        assert (step, position) in replayed.unordered(mutant)


def test_acts_that_are_launched_at_once_wait_for_nothing_that_another_of_their_waits_implies() -> None:
    left_out = kept = 0
    for place in range(12):
        seed, program = live_program(place, seed=700, resources=False)
        rng = random.Random(seed)
        for rank, launches in enumerate(launch_lists(program)):
            waits = event_waits(program, rank, launches)
            replayed = Replayed(program, rank, launches, frozenset())
            assert replayed.unordered(waits) == []
            step = len(waits) - 1
            for _ in range(20):
                few = [act for act in waits[step] if rng.random() < 0.5]
                every = {one for act in few for one in act.by_stream}
                found = awaited_together(few)
                acts = {one: (step - one.steps_ago, one.position) for one in every}
                known = {one: replayed.known[act] for one, act in acts.items()}
                assert set().union(*known.values()) == set().union(*(known[one] for one in found))
                for one in found:
                    assert not any(acts[one] in known[other] for other in found if other != one)
                left_out += len(every) - len(found)
                kept += len(found)
    assert left_out >= 20
    assert kept >= 100
