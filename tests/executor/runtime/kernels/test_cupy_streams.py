"""CuPy's streams and events: what is called is what the installed package has, and times are the node's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from executor.runtime.kernels import cupy_streams
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


class FakeStream:
    """A stream that is captured, and what a graph of it would take: 2 us for a fill, 1 us for an event."""

    ptr = 7

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.capturing, self.given = device, False, 0.0

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        """It stays current."""

    def begin_capture(self) -> None:
        assert not self.capturing
        self.capturing, self.given = True, 0.0

    def end_capture(self) -> Any:
        assert self.capturing
        self.capturing, took_ms = False, self.given

        def launch(stream: FakeStream) -> None:
            self.device.now_ms += took_ms

        return SimpleNamespace(launch=launch)


class FakeDevice:
    """CuPy on a device whose clock goes on by what graphs take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms, self.stream, self.flushed = 0.0, FakeStream(self), 0
        self.recorded: list[int] = []
        device = self

        class Event(FakeEvent):
            ptr, at_ms = 11, 0.0

            def record(self, stream: Any) -> None:
                assert not device.stream.capturing, "an event of a graph is not for timing"
                self.at_ms = device.now_ms

        def in_graph(event: int, stream: int) -> None:
            self.recorded.append(event)
            self.stream.given += 1e-3

        monkeypatch.setattr(cupy_streams, "record_in_graph", in_graph)
        self.cuda = SimpleNamespace(
            Event=Event,
            Stream=lambda non_blocking: self.stream,
            get_elapsed_time=lambda begin, end: end.at_ms - begin.at_ms,
        )

    def zeros(self, count: int, dtype: str) -> Any:
        def fill(value: float) -> None:
            self.stream.given += 2e-3

        return SimpleNamespace(fill=fill)

    def flush(self) -> None:
        self.flushed += 1


def test_what_a_timed_event_takes_in_a_graph_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    made = CupyStreams(device, device.flush)  # type: ignore[arg-type]
    assert made.event_cost_ns == 1000
    count = len(device.recorded)
    assert count > 0
    assert made.event_cost_ns == 1000
    assert len(device.recorded) == count


def test_what_is_put_off_is_captured_too_and_a_failure_ends_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    made = CupyStreams(device, device.flush)  # type: ignore[arg-type]
    seen: list[tuple[bool, int]] = []
    made.capture(device.stream, lambda: seen.append((device.stream.capturing, device.flushed)))
    assert seen == [(True, 1)], "what came before is not of the graph"
    assert device.flushed == 2

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made.capture(device.stream, fail)
    assert not device.stream.capturing
    made.record(device.cuda.Event(), device.stream)
    assert device.recorded == [], "no graph, no event of a graph"


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
