"""The decentralised multi-stream scheme with two halves, as Perseus and AIACC-Training do it.

Ranks agree among themselves on what is ready. It is fused up to a granularity, or a large gradient cut into fragments
of it, and each goes to a stream that is free: the upper half reduces inside the nodes and all-reduces between them over
the stream's own connections, the lower half broadcasts inside the nodes, while the stream is at its next fragment.

`together` is the design that was rejected: one fused buffer at a time, cut over all streams, waiting for the slowest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.exchange.buckets import MIB
from simulator.exchange.collectives import connection, lower_half, node_links, upper_half
from simulator.exchange.cycles import Cycles
from simulator.exchange.fabric import Fabric
from simulator.exchange.horovod import fused
from simulator.exchange.loop import Action, LinkGroup, TaskQueue
from simulator.exchange.negotiation import Negotiation
from simulator.exchange.training import Exchange, Task
from strategy.base.errors import InputError


@dataclass(frozen=True, slots=True)
class Streams:
    """Number of streams, bytes of a fragment, and least seconds between negotiations.

    Attributes:
        speeds: of the streams' connections, as shares of what one carries; all alike if empty.
        together: whether a fused buffer waits for all streams (see above).
    """

    streams: int = 4
    fragment_bytes: int = 8 * MIB
    cycle_s: float = 1e-3
    speeds: tuple[float, ...] = ()
    together: bool = False

    def __post_init__(self) -> None:
        if self.streams < 1 or self.fragment_bytes < 1:
            got = f"{self.streams} streams of {self.fragment_bytes} bytes"
            raise InputError("not possible", where="streams", got=got, expected="at least 1 of at least 1 byte")
        if self.speeds and len(self.speeds) != self.streams:
            raise InputError(
                "not one speed per stream", where="streams", got=str(self.speeds), expected=f"{self.streams} speeds"
            )

    @property
    def barrier(self) -> bool:
        """The optimiser waits for all gradients."""
        return True

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """A connection per stream."""
        speeds = self.speeds or (1.0,) * self.streams
        rates = {connection(k): LinkGroup(fabric.flow_bytes_per_s * speed) for k, speed in enumerate(speeds)}
        return {**node_links(fabric), **rates}

    def start(self, task: Task) -> Exchange:
        """Start the background thread and the pool of streams."""
        pool = _Pool(task, self)
        return Cycles(task, self.cycle_s, Negotiation.AGREED, pool.put)


@dataclass(slots=True)
class _Fragment:
    """Bytes of some gradients; a gradient is there when all of its fragments are."""

    nbytes: int
    gradients: tuple[int, ...]


class _Pool:
    def __init__(self, task: Task, options: Streams) -> None:
        self._task = task
        self._options = options
        self._queue: deque[list[_Fragment]] = deque()
        self._streams = [TaskQueue() for _ in range(options.streams)]
        self._lower = TaskQueue()
        self._left: dict[int, int] = {}

    def put(self, gradients: Sequence[int]) -> None:
        """Fuse what is small, cut what is large, and hand it to the streams."""
        task, most = self._task, self._options.fragment_bytes
        if self._options.together:
            most *= self._options.streams
        for group in fused(gradients, task.nbytes, most):
            size = sum(task.nbytes[gradient] for gradient in group)
            parts = self._options.streams if self._options.together else -(-size // most)
            fragments = [_Fragment((size + part) // parts, group) for part in range(parts)]
            for gradient in group:
                self._left[gradient] = parts
            self._queue.extend([fragments] if self._options.together else [[fragment] for fragment in fragments])
        self._feed()

    def _feed(self) -> None:
        """A buffer that is cut over all streams needs all of them; a fragment the first that is free."""
        while self._queue:
            free = [number for number, stream in enumerate(self._streams) if stream.free]
            if len(free) < len(self._queue[0]):
                return
            for number, fragment in zip(free, self._queue.popleft(), strict=False):
                self._upper(number, fragment)

    def _upper(self, number: int, fragment: _Fragment) -> None:
        task = self._task
        found = upper_half(task.fabric, fragment.nbytes, number)
        task.tally.data_messages += found.messages

        def begin(over: Action) -> None:
            def done() -> None:
                over()
                self._lower.put(lambda ended: self._broadcast(fragment, ended))
                self._feed()

            task.loop.transfer(found.legs, found.latency_ns, done)

        self._streams[number].put(begin)

    def _broadcast(self, fragment: _Fragment, over: Action) -> None:
        task = self._task
        found = lower_half(task.fabric, fragment.nbytes)
        task.tally.data_messages += found.messages

        def done() -> None:
            over()
            for gradient in fragment.gradients:
                self._left[gradient] -= 1
                if not self._left[gradient]:
                    task.exchanged(gradient)

        task.loop.transfer(found.legs, found.latency_ns, done)
