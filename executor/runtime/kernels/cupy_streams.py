"""Streams and events of an NVIDIA GPU, by CuPy; see `executor.runtime.streams.DeviceStreams`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

from executor.runtime.streams import Event, Graph, Stream
from strategy.base.errors import EnvironmentLacks

_TRIED_ACTS, _TRIALS = 200, 5


def record_in_graph(event: int, stream: int) -> None:
    """Record an event, by addresses, as a node of the graph that a stream is captured to: CuPy cannot.

    Raises:
        EnvironmentLacks: cuda-bindings is missing, or the driver refuses.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        message = f"acts in graphs are timed through cuda-bindings, which cannot be imported ({error})"
        raise EnvironmentLacks(f"{message}; install the extra `sbplan[gpu]`") from error
    (found,) = runtime.cudaEventRecordWithFlags(event, stream, runtime.cudaEventRecordExternal)
    if found != runtime.cudaError_t.cudaSuccess:
        raise EnvironmentLacks(f"an event cannot be recorded in a CUDA graph: {found.name}")


class CupyStreams:
    """Those of the device that is current for the thread that makes this object, which is the one that uses them.

    `flush` issues to the current stream what kernels have put off, before an event is recorded there.
    """

    def __init__(self, xp: ModuleType, flush: Callable[[], None]) -> None:
        self._xp, self._cuda, self._flush = xp, xp.cuda, flush
        self._capturing = False
        self._zero: Event = None
        self._zero_ns = 0
        self._event_cost_ns: int | None = None

    def open(self, name: str) -> Stream:
        """A stream that does not wait for the null stream, either."""
        return self._cuda.Stream(non_blocking=True)

    def event(self, *, timed: bool) -> Event:
        """An event; one that is not timed is cheaper. With the first that is, the clocks are compared."""
        if timed and self._zero is None:
            self._zero = self._cuda.Event()
            self._zero.record(self._cuda.get_current_stream())
            self._zero.synchronize()
            self._zero_ns = time.perf_counter_ns()
        return self._cuda.Event(disable_timing=not timed)

    def use(self, stream: Stream) -> AbstractContextManager[None]:
        """Make it CuPy's current stream."""
        found: AbstractContextManager[None] = stream
        return found

    def record(self, event: Event, stream: Stream) -> None:
        """Put an event behind what the stream has; in a graph, it is recorded anew whenever that is launched."""
        self._flush()
        if self._capturing:
            record_in_graph(event.ptr, stream.ptr)
        else:
            event.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """Let the stream wait, and not the host."""
        stream.wait_event(event)

    def query(self, event: Event) -> bool:
        """Whether the device has come by the event."""
        return bool(event.done)

    def synchronize(self, event: Event) -> None:
        """Wait on the host."""
        event.synchronize()

    def capture(self, stream: Stream, run: Callable[[], None]) -> Graph:
        """A CUDA graph; kernels and libraries must have been used before, for neither is to allocate meanwhile."""
        self._flush()
        stream.begin_capture()
        self._capturing = True
        try:
            run()
            self._flush()
        finally:
            self._capturing = False
            graph = stream.end_capture()
        return graph

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Launch it."""
        self._flush()
        graph.launch(stream)

    @property
    def event_cost_ns(self) -> int:
        """By two graphs of acts that do next to nothing, with an event before each and without, measured once."""
        if self._event_cost_ns is None:
            with self.open("cost of events") as stream:
                without_ms, with_ms = (self._graph_ms(stream, timed=timed) for timed in (False, True))
            self._event_cost_ns = max(0, round((with_ms - without_ms) * 1e6 / _TRIED_ACTS))
        return self._event_cost_ns

    def _graph_ms(self, stream: Stream, *, timed: bool) -> float:
        word, begin, end = self._xp.zeros(1, "float32"), self._cuda.Event(), self._cuda.Event()
        events = [self._cuda.Event() for _ in range(_TRIED_ACTS)] if timed else []

        def acts() -> None:
            for number in range(_TRIED_ACTS):
                if timed:
                    self.record(events[number], stream)
                word.fill(0)

        acts()
        graph = self.capture(stream, acts)
        found = []
        for _ in range(_TRIALS):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            found.append(float(self._cuda.get_elapsed_time(begin, end)))
        return min(found)

    def time_ns(self, event: Event) -> int:
        """By the node's monotonic clock, which was read right after the device had come by the first timed event."""
        since_ms = float(self._cuda.get_elapsed_time(self._zero, event))
        return self._zero_ns + round(since_ms * 1e6)
