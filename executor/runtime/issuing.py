"""Issuing: the acts of one rank are handed to its device in the order of the launch list, and events order its streams.

Every stream of the program is a stream of the device. An act that is issued is *issued* to the protocol at once, and
*done* when the device has come by the event behind it. The host goes ahead of the oldest act that is not done by a
bounded number of places in the launch list: what fast streams have done behind that act does not let the host go on,
for so many places later its events and buffers are used again. The host waits for the device itself only before acts
of its own and before it fills a buffer that was given to the device (`strategy.program.event_waits`).

Acts are issued by *runs*: those that follow one another in the list on one stream and are launched together, with one
event behind the last. Most runs are of one act. Those that kernels launch together, updates of an optimiser, are
*batched*, and each has a part of their time by its bytes, which such acts are bound by. Those that give the device the
same each time *repeat*: a run of them is captured as a graph for each choice of blocks, and replayed, which takes the
host microseconds where the acts one by one would take it longer than the device. A run of these ends where another
stream waits for an act or the host looks at it, so that nothing begins later than before but by the launch of the run.
Where acts are timed, there is an event before each, in graphs, too; an act then ends where the next one of its run
begins.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import perf_counter_ns

from executor.runtime.streams import DeviceStreams, Event, Graph, Stream
from strategy.program.event_waits import ActWaits, Awaited, StepWaits, awaited_together, event_waits
from strategy.program.launch_list import LaunchList, launch_lists
from strategy.program.program import Actor, Program
from strategy.program.protocol import Act, streams_of_actors

AHEAD = 1024
"""Acts that the host may be ahead of the device: enough for a few milliseconds, few enough that a fault shows soon."""
_RUNS_AHEAD = 4
"""The host may be ahead by so many of the longest runs."""
_MOST_GRAPHS = 64
"""Of one run: one for each choice of blocks. A run with more is issued act by act."""

Stretch = tuple[int, int]
"""Positions [first, last) in the launch list."""
RunKey = tuple[int, int]
"""Which events a run records, if it is timed, and which blocks its acts use: numbers of steps."""
HandedAct = tuple[Act, Callable[[], None]]
"""An act, and what hands over its work."""


@dataclass(frozen=True, slots=True)
class IssuedAct:
    """An act that the device has been given: as which of all launches, since when, and its events.

    Events are before it (if acts are timed) and behind it.
    """

    act: Act
    launch: int
    issued_ns: int
    begin: Event | None
    until: Event
    end: Event
    """Of its run."""
    part: tuple[float, float] = (0.0, 1.0)
    """From where to where it is at work, in the time of those that are launched together."""


class Issuer:
    """Hands the acts of `rank` to its device.

    Args:
        program: what all ranks do.
        rank: whose acts.
        streams: of the rank's device.
        host: actors that the host is itself.
        staged: actor -> buffers that the host fills for it in turn.
        timed: whether acts are to tell when they began and ended.
        ahead: acts that the host may be ahead of the oldest that the device has not done; at most as many as have
            events of their own.
        batched: actors whose acts are launched together where they follow one another.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        streams: DeviceStreams,
        *,
        host: Collection[int],
        staged: Mapping[int, int],
        timed: bool,
        ahead: int = AHEAD,
        batched: Collection[int] = (),
    ) -> None:
        self.launches: LaunchList = launch_lists(program)[rank]
        self.host = frozenset(host)
        self.waits: tuple[StepWaits, ...] = event_waits(program, rank, self.launches, host=host, staged=staged)
        """Of the first steps and, the last, of all others."""
        self._program, self._streams, self._timed, self._timing = program, streams, timed, timed
        stream_of = streams_of_actors(program)
        self._opened = {
            stream: streams.open(program.streams[stream].name)
            for stream in dict.fromkeys(stream_of[actor] for actor in self.launches)
        }
        back = (one.steps_ago for step in self.waits for act in step for one in (*act.by_host, *act.by_stream))
        self.laps = 1 + max(back, default=0)
        """An event is recorded anew when its act is issued again so many steps later."""
        self._ends = [[streams.event(timed=timed) for _ in range(self.laps)] for _ in self.launches]
        self._begins = [[streams.event(timed=True) for _ in range(self.laps)] for _ in self.launches] if timed else []
        self._stream_of, self._batched = stream_of, frozenset(batched)
        self._beside_host = _beside_host(program, self.host)
        self._ahead = min(ahead, len(self.launches) * self.laps)
        self._longest_run = min(self._ahead, max(1, ahead // _RUNS_AHEAD))
        self._given: tuple[object, ...] = ()
        self._runs: tuple[Stretch, ...] = ()
        self._together: tuple[Stretch, ...] = ()
        self.group()
        self._issued: dict[int, deque[tuple[IssuedAct, ...]]] = {stream: deque() for stream in self._opened}
        self._last: dict[int, Event] = {}
        self._launched = 0
        self._left = 0

    def extend(self, steps: int) -> None:
        """Go on for so many more steps."""
        self._left += steps * len(self.launches)

    def group(self, repeating: Collection[int] = (), reported: Collection[int] = (), *, timed: bool = True) -> None:
        """Set the runs of the steps to come, between steps.

        Args:
            repeating: actors of which every act gives the device the same.
            reported: actors behind whose acts something is copied.
            timed: whether acts are timed, if they can be.
        """
        self._timing = self._timed and timed
        given = frozenset(repeating), frozenset(reported)
        if (*given, self._timing) != self._given:
            self._given = (*given, self._timing)
            self._runs = _stretches(len(self.launches), self._follows(*given), self._longest_run)
            self._together = _stretches(len(self.launches), self._is_batched, self._longest_run, within=self._runs)
            self._parts = self._parts_of(self._together)
            # Between steps, for then the device does nothing else.
            self._event_cost_ns = self._streams.event_cost_ns if self._timing and repeating else 0
            self._periods = self._periods_of(given[0])
            self._awaited: dict[tuple[int, int], list[Awaited]] = {}
            """By the number of the step's waits and the first position of a run."""
            self._graphs: list[dict[RunKey, Graph | None]] = [{} for _ in self.launches]
            """By the first position of a run; None where it was run once and is captured the next time."""

    @property
    def next_run(self) -> tuple[int, ...]:
        """The actors whose acts come next, ready or not; none when all are launched."""
        if not self._left:
            return ()
        return self.launches[slice(*self._runs[self._launched % len(self.launches)])]

    @property
    def is_ahead(self) -> bool:
        """Whether with the next run the host were farther ahead of the device than it may be."""
        oldest = self._oldest()
        if oldest is None:
            return False
        return self._launched + len(self.next_run) - oldest.launch > self._ahead

    def host_may_go_on(self) -> bool:
        """Whether the device has done what the host itself waits for before the next act."""
        return all(self._streams.query(self._event(one)) for waits in self._next_waits() for one in waits.by_host)

    def leave_to_host(self) -> None:
        """The next act is the host's own, and begins."""
        self._join()
        self._launched += 1
        self._left -= 1

    def issue(self, take: Callable[[], Sequence[HandedAct]], then: Callable[[Act], None]) -> None:
        """Give the device the acts of the next run.

        Args:
            take: has the credits of the acts passed on; gives each with what hands over its work to the current
                stream. Where a graph does the work, this is called while the device is at it.
            then: hands over what follows behind the last.
        """
        self._join()
        step, first = divmod(self._launched, len(self.launches))
        stream, streams = self._opened[self._stream_of[self.launches[first]]], self._streams
        for one in self._next_awaited():
            streams.wait(stream, self._event(one))
        lap, (_, behind), period = step % self.laps, self._runs[first], self._periods[first]
        graphs, key = self._graphs[first], (lap if self._timing else 0, step % period if period else 0)
        graph, issued_ns = graphs.get(key), perf_counter_ns()
        end, together = self._ends[behind - 1][lap], self._together[first:behind]
        begins = [self._begins[begin][lap] for begin, _ in together] if self._timing else [None] * (behind - first)
        acts = take() if graph is None else ()
        with streams.use(stream):
            if graph is not None:
                streams.replay(graph, stream)
                acts = take()
            elif key in graphs:
                graphs[key] = graph = streams.capture(stream, partial(self._run, acts, begins, stream))
                streams.replay(graph, stream)
            else:
                # The first time, libraries and kernels may make what they need, which a graph cannot.
                self._run(acts, begins, stream)
                if period:
                    graphs[key] = None
            then(acts[-1][0])
            streams.record(end, stream)
        self._note(acts, begins, together, end, issued_ns)

    def _run(self, acts: Sequence[HandedAct], begins: Sequence[Event | None], stream: Stream) -> None:
        """Hand over acts one by one, an event before each that is timed."""
        before = None
        for begin, (_, run) in zip(begins, acts, strict=True):
            if begin is not None and begin is not before:
                self._streams.record(begin, stream)
            before = begin
            run()

    def _note(
        self,
        acts: Sequence[HandedAct],
        begins: Sequence[Event | None],
        together: Sequence[Stretch],
        end: Event,
        issued_ns: int,
    ) -> None:
        """Remember acts that have been issued."""
        step, first = divmod(self._launched, len(self.launches))
        found, behind = [], first + len(acts)
        for position, ((act, _), begin, (_, high)) in enumerate(zip(acts, begins, together, strict=True), first):
            until = self._begins[high][step % self.laps] if self._timing and high < behind else end
            launch = self._launched + position - first
            found.append(IssuedAct(act, launch, issued_ns, begin, until, end, self._parts[position]))
        stream = acts[0][0].stream
        self._last[stream] = end
        self._issued[stream].append(tuple(found))
        self._launched += len(acts)
        self._left -= len(acts)

    def on_stream(self, act: Act) -> AbstractContextManager[None]:
        """What the host's own act gives the device inside goes to the act's stream."""
        return self._streams.use(self._opened[act.stream])

    def ended(self) -> Iterator[IssuedAct]:
        """The acts that the device has done since it was last asked."""
        for issued in self._issued.values():
            while issued and self._streams.query(issued[0][0].end):
                yield from issued.popleft()

    def join(self) -> None:
        """Let the host use everything: all acts are done."""
        for last in self._last.values():
            self._streams.synchronize(last)

    def oldest(self) -> Act | None:
        """Of the acts that are not done, the one that was issued first; None where all are."""
        first = self._oldest()
        return None if first is None else first.act

    def _oldest(self) -> IssuedAct | None:
        return min((some[0][0] for some in self._issued.values() if some), key=lambda one: one.launch, default=None)

    def times_ns(self, issued: IssuedAct) -> tuple[int, int]:
        """When the device began and ended an act; when it was issued, where acts are not timed."""
        if issued.begin is None:
            return issued.issued_ns, perf_counter_ns()
        begin_ns, end_ns = self._streams.time_ns(issued.begin), self._streams.time_ns(issued.until)
        if issued.until is not issued.end:
            end_ns = max(begin_ns, end_ns - self._event_cost_ns)
        whole_ns, (first, last) = end_ns - begin_ns, issued.part
        return begin_ns + round(whole_ns * first), begin_ns + round(whole_ns * last)

    def _next_waits(self) -> Sequence[ActWaits]:
        """Of the acts of the next run."""
        step, first = divmod(self._launched, len(self.launches))
        return self.waits[min(step, len(self.waits) - 1)][slice(*self._runs[first])]

    def _next_awaited(self) -> list[Awaited]:
        """What the stream of the next run waits for; found once for each run."""
        step, first = divmod(self._launched, len(self.launches))
        key = min(step, len(self.waits) - 1), first
        if key not in self._awaited:
            self._awaited[key] = awaited_together(self._next_waits())
        return self._awaited[key]

    def _join(self) -> None:
        """Let the host use what was written before the acts that it has waited for."""
        for waits in self._next_waits():
            for one in waits.by_host:
                self._streams.synchronize(self._event(one))

    def _event(self, awaited: Awaited) -> Event:
        """The event behind an act of this step or of an earlier one."""
        step = self._launched // len(self.launches) - awaited.steps_ago
        return self._ends[self._runs[awaited.position][1] - 1][step % self.laps]

    def _follows(self, repeating: frozenset[int], reported: frozenset[int]) -> Callable[[int], bool]:
        """Whether the act at a position is of the run of the one before it."""
        waiting: set[int] = set()
        awaited: set[int] = set()
        for step in self.waits:
            for position, waits in enumerate(step):
                every = (*waits.by_host, *waits.by_stream)
                awaited.update(one.position for one in every)
                if every:
                    waiting.add(position)

        def follows(position: int) -> bool:
            before, actor = self.launches[position - 1], self.launches[position]
            if self._stream_of[before] != self._stream_of[actor] or before in self.host or before in reported:
                return False
            if actor in self._beside_host:
                return False
            apart = position in waiting or position - 1 in awaited
            return self._is_batched(position) or ({before, actor} <= repeating and not apart)

        return follows

    def _parts_of(self, together: Sequence[Stretch]) -> list[tuple[float, float]]:
        """By position, from where to where an act is at work in the time of those that are launched together."""
        sizes = [_nbytes_of(self._program, self._program.actors[actor]) for actor in self.launches]
        sums = [0, *accumulate(sizes)]
        return [
            ((sums[i] - sums[low]) / (sums[high] - sums[low]), (sums[i + 1] - sums[low]) / (sums[high] - sums[low]))
            for i, (low, high) in enumerate(together)
        ]

    def _periods_of(self, repeating: frozenset[int]) -> list[int]:
        """By position, after how many steps its run gives the device the same; 0 if never, or after too many."""
        found = [0] * len(self.launches)
        for first, (_, behind) in enumerate(self._runs):
            run = self.launches[first:behind]
            if len(run) > 1 and repeating.issuperset(run):
                period = math.lcm(*map(self._period_of_actor, run))
                found[first] = period if period * self.laps <= _MOST_GRAPHS else 0
        return found

    def _period_of_actor(self, index: int) -> int:
        """After how many steps an actor uses the same blocks, and begins and ends pieces as it did."""
        actor, registers = self._program.actors[index], self._program.registers
        round_of_acts = math.lcm(
            *(port.acts_per_piece * registers[port.register].blocks for port in (*actor.reads, *actor.writes))
        )
        return round_of_acts // math.gcd(round_of_acts, actor.acts_per_step)

    def _is_batched(self, position: int) -> bool:
        """Whether kernels launch the act at a position together with the one before it."""
        return {self.launches[position - 1], self.launches[position]} <= self._batched


def _stretches(
    count: int, follows: Callable[[int], bool], most: int, within: Sequence[Stretch] = ()
) -> tuple[Stretch, ...]:
    """By position, its stretch: of at most so many, within one of others, each position but the first following."""
    found: list[Stretch] = []
    while len(found) < count:
        first = len(found)
        limit, last = min(count, first + most, within[first][1] if within else count), first + 1
        while last < limit and follows(last):
            last += 1
        found += [(first, last)] * (last - first)
    return tuple(found)


def _nbytes_of(program: Program, actor: Actor) -> int:
    """Bytes of the blocks that an act uses, and one."""
    return 1 + sum(program.registers[port.register].block_nbytes for port in (*actor.reads, *actor.writes))


def _beside_host(program: Program, host: Collection[int]) -> frozenset[int]:
    """Actors of the host, and those whose credits depend on what these have done."""
    shared = {port.register for actor in host for port in (*program.actors[actor].reads, *program.actors[actor].writes)}
    return frozenset(
        index
        for index, actor in enumerate(program.actors)
        if any(port.register in shared for port in (*actor.reads, *actor.writes))
    ) | frozenset(host)
