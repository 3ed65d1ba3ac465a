"""Event waits: which acts of a rank must wait for an event of another stream, or of the host, and which need not.

An act follows those whose credits it needs (`Protocol.follows`), and those that used the memory that it writes
(`hazards`). Where one of them is ordered on the same stream, it
comes before anyway; otherwise the stream waits for an event that is recorded behind it, unless it knows already that
this act is done: from earlier waits of its own, from what the streams knew for which it has waited, and from what the
host had waited for when it launched the act. What each stream and the host know is a vector clock (Fidge 1988): by
stream, how many of its acts are done. So every wait is needed: without it some act would not be known to come after
one that it follows.

An actor of the *host* waits for the acts that it follows itself, and for what is before it on its stream, since the
memory plan counts on the order of streams. An actor that is *staged* begins on the host, which fills one of so many
buffers: the host waits for the act that took this buffer last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from strategy.base.errors import InternalError
from strategy.program.hazards import Block, Hazards
from strategy.program.launch_list import LaunchList
from strategy.program.program import Program
from strategy.program.protocol import Protocol

Clock = tuple[int, ...]
"""By stream of the rank, how many of its acts since the start are known to be done."""


@dataclass(frozen=True, slots=True)
class Done:
    """What is known once an act is done, counted from the begin of the step that waits for it.

    Attributes:
        stream: of the act, by its number.
        count: acts of that stream that are done then.
        clock: those of every stream.
    """

    stream: int
    count: int
    clock: Clock


@dataclass(frozen=True, slots=True, order=True)
class Awaited:
    """An act that is waited for: its position in the launch list, that many steps ago; and what is known then."""

    position: int
    steps_ago: int
    done: Done | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ActWaits:
    """What is waited for before an act: by the host before it launches the act, by the act's stream before it runs."""

    by_host: tuple[Awaited, ...] = ()
    by_stream: tuple[Awaited, ...] = ()


def awaited_together(waits: Iterable[ActWaits]) -> list[Awaited]:
    """What a stream waits for before several acts of a step that are launched at once.

    Each by itself waits for what those before it did not. Once all is waited for ahead of the first, what a later one
    waits for may say that what an earlier one waits for is done.
    """
    every = list(dict.fromkeys(one for act in waits for one in act.by_stream))
    return [one for one in every if not any(other != one and _implies(other.done, one.done) for other in every)]


def _implies(one: Done | None, other: Done | None) -> bool:
    """Whether whoever knows of one act that it is done knows of the other."""
    return one is not None and other is not None and one.clock[other.stream] >= other.count


StepWaits = tuple[ActWaits, ...]
"""By position in the launch list."""

_MOST_STEPS = 64
"""In which the waits of a step come to be those of the step before; blocks go round in far fewer."""


def event_waits(
    program: Program,
    rank: int,
    launches: LaunchList,
    *,
    host: Collection[int] = (),
    staged: Mapping[int, int] | None = None,
) -> tuple[StepWaits, ...]:
    """The waits of the first steps of a rank; the last are those of every further step.

    Args:
        program: what is launched.
        rank: whose acts.
        launches: its launch list.
        host: actors that the host is itself.
        staged: actor -> how many buffers the host fills for it in turn.
    """
    known = _Known(program, rank, launches, frozenset(host), dict(staged or {}))
    found = [known.step()]
    while len(found) < _MOST_STEPS:
        before = known.relative()
        found.append(known.step())
        if len(found) > known.horizon and _are_alike(*found[-2:]) and known.relative() == before:
            return tuple(found[:-1])
    raise InternalError(f"the waits of rank {rank} do not come to be the same in every step")


def _are_alike(one: StepWaits, other: StepWaits) -> bool:
    """Whether two steps wait for the same, and know the same of it."""
    done = ([awaited.done for act in step for awaited in (*act.by_host, *act.by_stream)] for step in (one, other))
    return one == other and next(done) == next(done)


class _Known:
    """What the streams of a rank and its host know, step after step."""

    def __init__(
        self, program: Program, rank: int, launches: LaunchList, host: frozenset[int], staged: dict[int, int]
    ) -> None:
        self.protocol = Protocol(program, steps=0, ranks=[rank])
        self.launches, self.host, self.staged = launches, host, staged
        self.steps = 0
        stream_of = {actor: self.protocol.stream_of(actor) for actor in launches}
        self.stream = {actor: self.protocol.streams.index(stream) for actor, stream in stream_of.items()}
        self.width = len(self.protocol.streams)
        self.counts = [0] * self.width
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        """(actor, how many of its acts of a step came before) -> position in the list, acts before it on its stream."""
        nth: dict[int, int] = {}
        for position, actor in enumerate(launches):
            number, stream = nth.get(actor, 0), self.stream[actor]
            self.places[actor, number] = position, self.counts[stream]
            nth[actor] = number + 1
            self.counts[stream] += actor not in host
        self.of_streams: list[Clock] = [(0,) * self.width] * self.width
        self.of_host: Clock = (0,) * self.width
        self.hazards = Hazards(program, rank)
        self.last: list[tuple[int, int] | None] = [None] * self.width
        """By stream, the act launched last: its step and position."""
        self.clocks: list[list[Clock]] = []
        """By step and position, what is known when the act is done."""
        self.horizon = 1 + max((-(-b // c) for b, c in self._rounds(program)), default=0)
        """Steps after which no act is waited for."""

    def _rounds(self, program: Program) -> Iterator[tuple[int, int]]:
        """(blocks that are gone through in turn, how many of them in a step) of what the rank writes."""
        for index in set(self.launches):
            actor = program.actors[index]
            for port in actor.writes:
                yield program.registers[port.register].blocks, actor.acts_per_step // port.acts_per_piece
            yield self.staged.get(index, 1), actor.acts_per_step

    def relative(self) -> tuple[object, ...]:
        """What is known, counted back from the end of the last step; equal if the steps to come are equal."""
        clocks = (*self.of_streams, self.of_host)
        total = [count * self.steps for count in self.counts]
        last = tuple(at and (self.steps - at[0], at[1]) for at in self.last)
        recent = tuple(tuple(self._back(clock, total) for clock in step) for step in self.clocks[-1:])
        used = [(block, stream, *next(self._awaited([act]))) for block, stream, act in self.hazards.users()]
        users = sorted((block, stream, self.steps - step, position) for block, stream, step, position in used)
        return tuple(self._back(clock, total) for clock in clocks), last, recent, tuple(users)

    def _back(self, clock: Clock, total: Iterable[int]) -> Clock:
        """How far a clock is back; what is farther than anything is waited for is all the same."""
        far = [count * (self.horizon + 1) for count in self.counts]
        return tuple(min(end - count, most) for count, end, most in zip(clock, total, far, strict=True))

    def step(self) -> StepWaits:
        """Launch the acts of one more step."""
        self.protocol.extend(1)
        self.clocks.append([])
        found = tuple(self._launch(position, actor) for position, actor in enumerate(self.launches))
        self.steps += 1
        return found

    def _launch(self, position: int, actor: int) -> ActWaits:
        number, stream = self.protocol.acts_issued[actor], self.stream[actor]
        reads, writes = self._blocks(actor, number)
        follows = set(self._awaited([*self.protocol.follows(actor), *self.hazards.before(writes, stream)]))
        if actor in self.host:
            previous = self.last[stream]
            by_host = self._needed(self.of_host, follows | ({previous} if previous else set()))
            by_stream: list[tuple[int, int]] = []
        else:
            taken = [(actor, number - self.staged[actor])] if number >= self.staged.get(actor, number + 1) else []
            by_host = self._needed(self.of_host, set(self._awaited(taken)))
            self.of_host = self._with(self.of_host, by_host)
            by_stream = self._needed(_latest(self.of_streams[stream], self.of_host), follows)
        clock = self.of_host = self._with(self.of_host, by_host)
        if actor not in self.host:
            clock = self._with(_latest(self.of_streams[stream], self.of_host), by_stream)
            done = list(clock)
            done[stream] = self._place(actor, number)[1] + 1
            self.of_streams[stream] = clock = tuple(done)
            self.last[stream] = (self.steps, position)
        self.clocks[-1].append(clock)
        if actor not in self.host:  # what the host does is over when it launches what is next
            self.hazards.use((*reads, *writes), stream, (actor, number))
        self.protocol.done(self.protocol.issue(self.protocol.stream_of(actor), actor))
        return ActWaits(self._waits(by_host), self._waits(by_stream))

    def _blocks(self, actor: int, number: int) -> tuple[list[Block], list[Block]]:
        """What an act reads and writes."""
        found, ports = self.protocol.blocks_of(actor, number), self.protocol.program.actors[actor]
        reads, writes = (
            [(port.register, block) for port, block in zip(some, blocks, strict=True)]
            for some, blocks in zip((ports.reads, ports.writes), found, strict=True)
        )
        return reads, writes

    def _waits(self, acts: Iterable[tuple[int, int]]) -> tuple[Awaited, ...]:
        return tuple(sorted(Awaited(act[1], self.steps - act[0], self._done(act)) for act in acts))

    def _done(self, act: tuple[int, int]) -> Done:
        """Counted from the begin of this step; what is farther back than anything is waited for is all the same."""
        stream, count = self._count(act)
        begin = [each * self.steps for each in self.counts]
        clock = tuple(-back for back in self._back(self._clock(act), begin))
        return Done(stream, count - begin[stream], clock)

    def _awaited(self, acts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """(step, position) of acts, (actor, number), of the device; the host's are over once they are launched."""
        for actor, number in acts:
            if actor not in self.host:
                per_step = self.protocol.program.actors[actor].acts_per_step
                yield number // per_step, self.places[actor, number % per_step][0]

    def _place(self, actor: int, number: int) -> tuple[int, int]:
        """Position of an act in the list, and how many acts of its stream since the start came before it."""
        step, nth = divmod(number, self.protocol.program.actors[actor].acts_per_step)
        position, before = self.places[actor, nth]
        return position, before + step * self.counts[self.stream[actor]]

    def _clock(self, act: tuple[int, int]) -> Clock:
        return self.clocks[act[0]][act[1]]

    def _count(self, act: tuple[int, int]) -> tuple[int, int]:
        """Stream of an act, and how many acts of it are done with this one."""
        stream = self.stream[self.launches[act[1]]]
        return stream, self._clock(act)[stream]

    def _needed(self, clock: Clock, acts: set[tuple[int, int]]) -> list[tuple[int, int]]:
        """Of acts, those of which neither `clock` knows that they are done nor whoever is waited for besides."""
        unknown = [(act, *self._count(act)) for act in acts]
        unknown = [(act, stream, count) for act, stream, count in unknown if clock[stream] < count]
        return [
            act
            for act, stream, count in unknown
            if not any(other != act and self._clock(other)[stream] >= count for other, *_ in unknown)
        ]

    def _with(self, clock: Clock, acts: Iterable[tuple[int, int]]) -> Clock:
        for act in acts:
            clock = _latest(clock, self._clock(act))
        return clock


def _latest(one: Clock, other: Clock) -> Clock:
    return tuple(map(max, one, other))
