"""Events of an exchange: transfers that share links, in whole nanoseconds, with conservation always checked.

Lighter than `simulator.engine`: what is fused, and when, depends on what happens to be ready, so that an exchange is no
program of actors that is known beforehand; and of thousands of ranks that do the same, one is simulated. What a
transfer is and how links are shared is the engine's: latency first, then its bytes through every link that it crosses,
each a `SharedResource`; it ends when the slowest is through. A connection that carries less than the NIC is one more
link, which its transfers cross.

Deterministic: events are ordered by (time, order of announcement).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

from simulator.resources import SharedResource
from strategy.base.errors import InternalError
from strategy.program.program import time_alone_ns

Action = Callable[[], None]
Legs = Mapping[str, int]
"""Link -> bytes that one transfer moves through it."""


class Side(StrEnum):
    """Which end of a path a link is: bytes sent and bytes received must agree over all of a kind's ends."""

    OUT = "out"
    IN = "in"
    NEITHER = "neither"
    """A connection between ends that are counted for themselves, or a host."""


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """`count` links that do alike, of which one is simulated; `far` ones lie between nodes."""

    bytes_per_s: float
    side: Side = Side.NEITHER
    count: int = 1
    far: bool = False


@dataclass(slots=True)
class _Transfer:
    pending: int
    done: Action


class Loop:
    """Virtual time. Actions are called at their time; `transfer` calls one when all bytes are through."""

    def __init__(self, links: Mapping[str, LinkGroup]) -> None:
        self.links = links
        self.now_ns = 0
        self.num_events = 0
        self._flows = {name: SharedResource[_Transfer](name, link.bytes_per_s) for name, link in links.items()}
        self._demanded = dict.fromkeys(links, 0)
        self._transfers = dict.fromkeys(links, 0)
        self._heap: list[tuple[int, int, Action]] = []
        self._moving = 0
        self.moves: Callable[[bool], None] = lambda moving: None
        """Told whenever the network begins or ceases to have anything to move."""

    def at(self, time_ns: int, action: Action) -> None:
        """Call `action` at a time that is not past."""
        self.num_events += 1
        heappush(self._heap, (max(time_ns, self.now_ns), self.num_events, action))

    def transfer(self, legs: Legs, latency_ns: int, done: Action) -> None:
        """Begin to move bytes now, after a latency."""
        moving = {name: nbytes for name, nbytes in legs.items() if nbytes}
        for name, nbytes in moving.items():
            self._demanded[name] += nbytes
            self._transfers[name] += 1

        across = any(self.links[name].far for name in moving)

        def join() -> None:
            transfer = _Transfer(len(moving), ended)
            self._moved(across)
            for name, nbytes in moving.items():
                self._flows[name].join(self.now_ns, transfer, nbytes)
                self._announce(name)
            if not moving:
                done()

        def ended() -> None:
            self._moved(-across)
            done()

        self.at(self.now_ns + latency_ns, join)

    def _moved(self, change: int) -> None:
        self._moving += change
        if self._moving == max(change, 0) and change:
            self.moves(change > 0)

    def run(self) -> None:
        """Go on until nothing is left to happen, then check what must hold.

        Raises:
            InternalError: bytes were lost or made, or a link was faster than it is.
        """
        while self._heap:
            self.now_ns, _, action = heappop(self._heap)
            action()
        self._check()

    @property
    def sent_bytes(self) -> int:
        """Bytes that all nodes and GPUs have sent."""
        return self._total(Side.OUT)

    @property
    def received_bytes(self) -> int:
        """Bytes that all nodes and GPUs have received."""
        return self._total(Side.IN)

    @property
    def busy_ns(self) -> dict[str, int]:
        """Link -> time in which it had something to move."""
        return {name: flow.busy_ns for name, flow in self._flows.items()}

    def _total(self, side: Side) -> int:
        own = (name for name, link in self.links.items() if link.side is side)
        return sum(self._flows[name].served_bytes * self.links[name].count for name in own)

    def _announce(self, name: str) -> None:
        flow = self._flows[name]
        time_ns = flow.next_end_ns()
        if time_ns is None:
            return
        version = flow.version

        def leave() -> None:
            if flow.version != version:
                return
            through = flow.leave(self.now_ns)
            self._announce(name)
            for transfer in through:
                transfer.pending -= 1
                if not transfer.pending:
                    transfer.done()

        self.at(time_ns, leave)

    def _check(self) -> None:
        for name, flow in self._flows.items():
            if flow.served_bytes != self._demanded[name]:
                raise InternalError(f"link {name} moved {flow.served_bytes} of {self._demanded[name]} bytes")
            alone_ns = time_alone_ns(flow.served_bytes, flow.bytes_per_s)
            if not alone_ns <= flow.busy_ns + 1 <= alone_ns + self._transfers[name] + 1:
                raise InternalError(f"link {name} moved {flow.served_bytes} bytes in {flow.busy_ns} ns")
            if flow.busy_ns > self.now_ns:
                raise InternalError(f"link {name} was busy for {flow.busy_ns} of {self.now_ns} ns")
        if self.sent_bytes != self.received_bytes:
            raise InternalError(f"{self.sent_bytes} bytes were sent and {self.received_bytes} received")


class TaskQueue:
    """Acts one after another, each told when its turn comes and saying when it is over."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[Action], None]] = []
        self._busy = False

    def put(self, act: Callable[[Action], None]) -> None:
        """Append an act; it is called with what it must call at its end."""
        self._waiting.append(act)
        if not self._busy:
            self._next()

    @property
    def free(self) -> bool:
        """Whether an act put now would begin now."""
        return not self._busy

    def _next(self) -> None:
        if self._waiting:
            self._busy = True
            self._waiting.pop(0)(self._over)

    def _over(self) -> None:
        self._busy = False
        self._next()
