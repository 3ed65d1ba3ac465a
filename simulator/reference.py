"""The reference engine: drives the actor protocol (`strategy.program.protocol`) itself, act by act, in plain Python.

At each instant all acts that end there end first; then every stream that they woke starts what the protocol
allows. Acts of a stream are serial. A rendezvous starts when each member is at the head of its stream with its
credits, and ends for all of them at once: its latency is its members' largest, its demands are the sum of theirs.
An act first waits its latency, then moves its bytes (`resources` says how acts share).

Deterministic: events are ordered by (time, order of announcement), streams by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from simulator.resources import SharedResource, check_demands
from strategy.base.errors import DeadlockError
from strategy.program.program import Program
from strategy.program.protocol import Act, Protocol, find_cycle, rendezvous_members
from strategy.program.timeline import ActRecord, Clock, Timeline, make_timeline

Jitter = Callable[[int, int], Any]
"""(actor, number of the act) -> extra nanoseconds, not negative."""


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What happened in virtual time.

    `served_bytes` and `resource_busy_ns` are by resource.
    """

    timeline: Timeline
    served_bytes: Mapping[str, int]
    resource_busy_ns: Mapping[str, int]
    num_events: int


class _Flight:
    """An act under way (of all members, if a rendezvous): what is left before it ends is counted in `pending`."""

    __slots__ = ("acts", "demands", "pending", "ready_ns", "start_ns")

    def __init__(
        self, acts: tuple[Act, ...], ready_ns: tuple[int, ...], start_ns: int, demands: tuple[tuple[str, int], ...]
    ) -> None:
        self.acts = acts
        self.ready_ns = ready_ns
        self.start_ns = start_ns
        self.demands = demands
        self.pending = len(demands)


_Flow = SharedResource[_Flight]


def run(program: Program, steps: int, *, jitter: Jitter | None = None) -> ReferenceRun:
    """Run `steps` steps in virtual time.

    Args:
        program: the program; it need not be admitted before.
        steps: how many steps, at least one.
        jitter: adds to the latency of each act, so that tests can try other orders of events.

    Raises:
        DeadlockError: the program hangs; names the cycle of waits.
        PlanError: an act demands a resource that the program does not have.
    """
    engine = _Engine(program, steps, jitter)
    engine.run()
    flows = engine.flows.values()
    return ReferenceRun(
        timeline=make_timeline(program, engine.records, clock=Clock.SIMULATED, steps=steps),
        served_bytes={flow.name: flow.served_bytes for flow in flows},
        resource_busy_ns={flow.name: flow.busy_ns for flow in flows},
        num_events=engine.num_events,
    )


class _Engine:
    def __init__(self, program: Program, steps: int, jitter: Jitter | None) -> None:
        check_demands(program)
        self.program = program
        self.protocol = Protocol(program, steps=steps)
        self.members = rendezvous_members(program)
        self.jitter = jitter
        self.flows = {name: _Flow(name, rate) for name, rate in sorted(program.resources.items())}
        self.records: list[ActRecord] = []
        self.num_events = 0
        self._heap: list[tuple[int, int, _Flight | None, _Flow | None, int]] = []
        self._ready_ns: list[int | None] = [None] * len(program.streams)

    def run(self) -> None:
        """Go from event to event until nothing can happen any more."""
        self._start(self.protocol.streams, 0)
        heap = self._heap
        while heap:
            now_ns = heap[0][0]
            woken: set[int] = set()
            while heap and heap[0][0] == now_ns:
                _, _, flight, flow, version = heappop(heap)
                if flight is not None:
                    self._latency_passed(flight, now_ns, woken)
                elif flow is not None and flow.version == version:
                    for through in flow.leave(now_ns):
                        through.pending -= 1
                        if not through.pending:
                            self._end(through, now_ns, woken)
                    self._announce(flow)
            self._start(sorted(woken), now_ns)
        if not self.protocol.finished:
            raise DeadlockError(find_cycle(self.protocol, self.members))

    def _start(self, streams: Iterable[int], now_ns: int) -> None:
        head = self.protocol.head
        actors = self.program.actors
        for stream in streams:
            actor = head(stream)
            if actor is None:
                continue
            found = actors[actor]
            if found.rendezvous is None:
                act = self.protocol.issue(stream, actor)
                latency_ns = found.work.latency_ns + (int(self.jitter(actor, act.number)) if self.jitter else 0)
                self._push(now_ns + latency_ns, _Flight((act,), (now_ns,), now_ns, _merged(found.work.demands)))
            else:
                self._meet(stream, found.rendezvous, now_ns)

    def _meet(self, stream: int, rendezvous: int, now_ns: int) -> None:
        """One member is ready: start the rendezvous if all are, otherwise note since when this one is."""
        if self._ready_ns[stream] is None:
            self._ready_ns[stream] = now_ns
        peers = self.members[rendezvous]
        streams = [self.protocol.stream_of(peer) for peer in peers]
        if any(self.protocol.head(s) != peer for s, peer in zip(streams, peers, strict=True)):
            return
        acts, ready_ns, latency_ns = [], [], 0
        demands: list[tuple[str, int]] = []
        for peer_stream, peer in zip(streams, peers, strict=True):
            act = self.protocol.issue(peer_stream, peer)
            since_ns = self._ready_ns[peer_stream]
            self._ready_ns[peer_stream] = None
            work = self.program.actors[peer].work
            acts.append(act)
            ready_ns.append(now_ns if since_ns is None else since_ns)
            latency_ns = max(latency_ns, work.latency_ns + (int(self.jitter(peer, act.number)) if self.jitter else 0))
            demands.extend(work.demands)
        self._push(now_ns + latency_ns, _Flight(tuple(acts), tuple(ready_ns), now_ns, _merged(demands)))

    def _push(self, time_ns: int, flight: _Flight) -> None:
        self.num_events += 1
        heappush(self._heap, (time_ns, self.num_events, flight, None, 0))

    def _announce(self, flow: _Flow) -> None:
        time_ns = flow.next_end_ns()
        if time_ns is not None:
            self.num_events += 1
            heappush(self._heap, (time_ns, self.num_events, None, flow, flow.version))

    def _latency_passed(self, flight: _Flight, now_ns: int, woken: set[int]) -> None:
        if not flight.demands:
            self._end(flight, now_ns, woken)
        for name, nbytes in flight.demands:
            flow = self.flows[name]
            flow.join(now_ns, flight, nbytes)
            self._announce(flow)

    def _end(self, flight: _Flight, now_ns: int, woken: set[int]) -> None:
        for act, ready_ns in zip(flight.acts, flight.ready_ns, strict=True):
            self.records.append(
                ActRecord(
                    act.actor,
                    act.stream,
                    act.number,
                    act.read_blocks,
                    act.write_blocks,
                    flight.start_ns,
                    now_ns,
                    ready_ns,
                )
            )
            woken.update(self.protocol.done(act))


def _merged(demands: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """One demand per resource, and none of no bytes: an act is one user of a resource however it says so."""
    total: dict[str, int] = {}
    for name, nbytes in demands:
        if nbytes > 0:
            total[name] = total.get(name, 0) + nbytes
    return tuple(total.items())
