"""The seam between a worker and the streams of its device: acts on one follow each other, events order two of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

Stream = Any
"""A stream of the device, such as CuPy's."""
Event = Any
"""A place on a stream."""
Graph = Any
"""What a stream was given, to be given again at once."""


class DeviceStreams(Protocol):
    """The streams and events of one device. Nothing here waits but `synchronize`."""

    def open(self, name: str) -> Stream:
        """A new stream, which waits for no other by itself."""
        ...

    def event(self, *, timed: bool) -> Event:
        """An event that is not yet recorded; `timed` if it is to tell when it passed."""
        ...

    def use(self, stream: Stream) -> AbstractContextManager[None]:
        """What is issued inside goes to this stream."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """Put an event behind all that the stream, the current one, has been given; its earlier place is forgotten."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what the stream is given from now on wait for the event where it is now."""
        ...

    def query(self, event: Event) -> bool:
        """Whether the device has come by the event. Cheap."""
        ...

    def synchronize(self, event: Event) -> None:
        """Wait on the host until the device has come by the event, so that the host may use what was written before."""
        ...

    def capture(self, stream: Stream, run: Callable[[], None]) -> Graph:
        """What `run` gives the stream, the current one, as a graph: nothing of it is done yet."""
        ...

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Give the stream, the current one, all of a graph."""
        ...

    @property
    def event_cost_ns(self) -> int:
        """What a timed event in a graph takes of the device, between two acts."""
        ...

    def time_ns(self, event: Event) -> int:
        """When the device came by a timed event, by the node's monotonic clock (`perf_counter_ns`)."""
        ...
