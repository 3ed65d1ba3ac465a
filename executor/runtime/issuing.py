"""Issuing: the acts of one rank are handed to its device in the order of the launch list, and events order its streams.

Every stream of the program is a stream of the device. An act that is issued is *issued* to the protocol at once, and
*done* when the device has come by the event behind it. The host goes ahead of the oldest act that is not done by a
bounded number of places in the launch list: what fast streams have done behind that act does not let the host go on,
for so many places later its events and buffers are used again. The host waits for the device itself only before acts
of its own and before it fills a buffer that was given to the device (`strategy.program.event_waits`).

Acts that the kernels launch together, updates of an optimiser, are *batched*: those that follow one another in the list
on one stream have one event behind the last, and each an equal part of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns

from executor.runtime.streams import DeviceStreams, Event
from strategy.program.event_waits import ActWaits, Awaited, StepWaits, event_waits
from strategy.program.launch_list import LaunchList, launch_lists
from strategy.program.program import Program
from strategy.program.protocol import Act, streams_of_actors

AHEAD = 1024
"""Acts that the host may be ahead of the device: enough for a few milliseconds, few enough that a fault shows soon."""


@dataclass(frozen=True, slots=True)
class IssuedAct:
    """An act that the device has been given: as which of all launches, since when, and its events.

    Events are before it (if acts are timed) and behind it.
    """

    act: Act
    launch: int
    issued_ns: int
    begin: Event | None
    end: Event
    part: tuple[int, int] = (0, 1)
    """Which of how many acts that were launched together."""


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
        self._streams, self._timed = streams, timed
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
        self._batches = _batches(self.launches, stream_of, batched)
        self._batch: list[IssuedAct] = []
        self._ahead = min(ahead, len(self.launches) * self.laps)
        self._issued: dict[int, deque[IssuedAct]] = {stream: deque() for stream in self._opened}
        self._last: dict[int, Event] = {}
        self._launched = 0
        self._left = 0

    def extend(self, steps: int) -> None:
        """Go on for so many more steps."""
        self._left += steps * len(self.launches)

    @property
    def next_actor(self) -> int | None:
        """The actor whose act comes next, ready or not; None when all are launched."""
        return self.launches[self._launched % len(self.launches)] if self._left else None

    @property
    def is_ahead(self) -> bool:
        """Whether the host is as far ahead of the device as it may be."""
        oldest = self._oldest()
        return oldest is not None and self._launched - oldest.launch >= self._ahead

    def host_may_go_on(self) -> bool:
        """Whether the device has done what the host itself waits for before the next act."""
        return all(self._streams.query(self._event(one)) for one in self._next_waits.by_host)

    def leave_to_host(self) -> None:
        """The next act is the host's own, and begins."""
        self._join()
        self._launched += 1
        self._left -= 1

    def issue(self, act: Act, run: Callable[[], None]) -> None:
        """Give the device the next act: `run` hands over the work, to the current stream."""
        self._join()
        stream, streams = self._opened[act.stream], self._streams
        step, position = divmod(self._launched, len(self.launches))
        for one in self._next_waits.by_stream:
            streams.wait(stream, self._event(one))
        first, last = self._batches[position]
        end = self._ends[last - 1][step % self.laps]
        begin = self._begins[first][step % self.laps] if self._timed else None
        issued_ns = perf_counter_ns()
        with streams.use(stream):
            if begin is not None and position == first:
                streams.record(begin, stream)
            run()
            if position == last - 1:
                streams.record(end, stream)
        part = (position - first, last - first)
        self._batch.append(IssuedAct(act, self._launched, issued_ns, begin, end, part))
        if position == last - 1:
            self._last[act.stream] = end
            self._issued[act.stream].extend(self._batch)
            self._batch = []
        self._launched += 1
        self._left -= 1

    def on_stream(self, act: Act) -> AbstractContextManager[None]:
        """What the host's own act gives the device inside goes to the act's stream."""
        return self._streams.use(self._opened[act.stream])

    def ended(self) -> Iterator[IssuedAct]:
        """The acts that the device has done since it was last asked."""
        for issued in self._issued.values():
            while issued and self._streams.query(issued[0].end):
                yield issued.popleft()

    def join(self) -> None:
        """Let the host use everything: all acts are done."""
        for last in self._last.values():
            self._streams.synchronize(last)

    def oldest(self) -> Act | None:
        """Of the acts that are not done, the one that was issued first; None where all are."""
        first = self._oldest()
        return None if first is None else first.act

    def _oldest(self) -> IssuedAct | None:
        return min((some[0] for some in self._issued.values() if some), key=lambda one: one.launch, default=None)

    def times_ns(self, issued: IssuedAct) -> tuple[int, int]:
        """When the device began and ended an act; when it was issued, where acts are not timed."""
        if issued.begin is None:
            return issued.issued_ns, perf_counter_ns()
        begin_ns, end_ns = self._streams.time_ns(issued.begin), self._streams.time_ns(issued.end)
        number, count = issued.part
        each = (end_ns - begin_ns) / count
        return begin_ns + round(each * number), begin_ns + round(each * (number + 1))

    @property
    def _next_waits(self) -> ActWaits:
        step, position = divmod(self._launched, len(self.launches))
        return self.waits[min(step, len(self.waits) - 1)][position]

    def _join(self) -> None:
        """Let the host use what was written before the acts that it has waited for."""
        for one in self._next_waits.by_host:
            self._streams.synchronize(self._event(one))

    def _event(self, awaited: Awaited) -> Event:
        """The event behind an act of this step or of an earlier one."""
        step = self._launched // len(self.launches) - awaited.steps_ago
        return self._ends[self._batches[awaited.position][1] - 1][step % self.laps]


def _batches(launches: LaunchList, stream_of: Sequence[int], batched: Collection[int]) -> tuple[tuple[int, int], ...]:
    """By position, [first, last) of the acts that it is launched together with."""
    found: list[tuple[int, int]] = []
    while len(found) < len(launches):
        first = last = len(found)
        last += 1
        while last < len(launches) and {launches[first], launches[last]} <= set(batched):
            if stream_of[launches[last]] != stream_of[launches[first]]:
                break
            last += 1
        found += [(first, last)] * (last - first)
    return tuple(found)
