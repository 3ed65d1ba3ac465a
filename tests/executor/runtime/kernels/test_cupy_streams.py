"""CuPy's streams and events: what is called is what the installed package has, and times are the node's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from executor.runtime.kernels.cupy_streams import CupyStreams


class FakeEvent:
    """An event of a device that is through at once."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.disable_timing, self.done = disable_timing, True
        self.recorded: list[Any] = []
        self.synchronised = 0

    def record(self, stream: Any) -> None:
        self.recorded.append(stream)

    def synchronize(self) -> None:
        self.synchronised += 1


def streams() -> CupyStreams:
    """Over a stand-in for CuPy, on which everything lasts 1.5 ms."""
    cuda = SimpleNamespace(
        Event=FakeEvent,
        Stream=lambda non_blocking: SimpleNamespace(non_blocking=non_blocking, waits=[]),
        get_current_stream=lambda: "null",
        get_elapsed_time=lambda begin, end: 1.5,
    )
    return CupyStreams(SimpleNamespace(cuda=cuda), lambda: None)  # type: ignore[arg-type]


def test_streams_do_not_wait_for_the_null_stream() -> None:
    assert streams().open("compute").non_blocking


def test_clocks_are_compared_once_at_the_first_timed_event() -> None:
    made = streams()
    assert made.event(timed=False).disable_timing
    begin_ns = time.perf_counter_ns()
    first, second = made.event(timed=True), made.event(timed=True)
    end_ns = time.perf_counter_ns()
    assert not first.disable_timing
    assert begin_ns <= made.time_ns(first) - 1_500_000 <= end_ns
    assert made.time_ns(first) == made.time_ns(second)


def test_an_event_is_recorded_on_the_stream_that_is_named_and_waited_for_on_the_host_alone_if_asked() -> None:
    made = streams()
    event = made.event(timed=False)
    made.record(event, "compute")
    assert event.recorded == ["compute"]
    assert made.query(event)
    assert event.synchronised == 0
    made.synchronize(event)
    assert event.synchronised == 1


def test_cupy_has_what_is_called() -> None:
    cupy = pytest.importorskip("cupy")
    cuda = cupy.cuda
    assert {"use", "wait_event", "record", "synchronize", "ptr", "__enter__"} <= {*dir(cuda.Stream), "ptr"}
    assert {"record", "synchronize", "done"} <= set(dir(cuda.Event))
    assert callable(cuda.get_elapsed_time)
    assert callable(cuda.get_current_stream)
    heading = (cuda.runtime.memcpyAsync.__doc__ or "").splitlines()[0]
    assert heading.startswith("memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)")
