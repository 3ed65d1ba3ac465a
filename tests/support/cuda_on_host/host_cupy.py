"""A CuPy whose device is the host: NumPy's arrays, and kernels of ours from their own sources."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import build, run

TOTAL_NBYTES = 2**33


class DeviceArray(np.ndarray):
    """An array that is copied as CuPy's are."""

    def get(self, out: Any = None) -> Any:
        """A copy on the host."""
        if out is None:
            return np.array(self)
        np.copyto(out, self)
        return out

    def set(self, host: Any) -> None:
        """Copy from the host."""
        np.copyto(self, host)


class HostCupy:
    """What is asked of CuPy; `loaded`, `launched` and `synchronised` record it."""

    def __init__(self, capability: str = "90") -> None:
        self.loaded: list[tuple[str, str]] = []
        self.launched: list[tuple[str, tuple[Any, ...]]] = []
        self.synchronised = 0
        self.__version__ = "14.2.0"
        device = SimpleNamespace(compute_capability=capability, use=lambda: None, synchronize=self.synchronise)
        stream = HostStream(self.synchronise)
        properties = {"name": b"host", "totalGlobalMem": TOTAL_NBYTES, "multiProcessorCount": 1}
        self.cuda = SimpleNamespace(
            Device=lambda index=0: device,
            Event=HostEvent,
            Stream=lambda *, non_blocking: stream,
            alloc_pinned_memory=bytearray,
            get_current_stream=lambda: stream,
            get_elapsed_time=lambda begin, end: (end.at - begin.at) * 1e3,
            is_available=lambda: True,
            runtime=SimpleNamespace(
                getDeviceCount=lambda: 1,
                getDeviceProperties=lambda index: properties,
                driverGetVersion=lambda: 13000,
                runtimeGetVersion=lambda: 13000,
                memGetInfo=lambda: (TOTAL_NBYTES, TOTAL_NBYTES),
                memcpyAsync=lambda target, source, nbytes, kind, stream: ctypes.memmove(target, source, nbytes),
            ),
        )

    def get_default_memory_pool(self) -> Any:
        """A pool whose limit is not enforced."""
        return SimpleNamespace(set_limit=lambda *, fraction: None)

    def synchronise(self) -> None:
        """Wait for the device."""
        self.synchronised += 1

    def empty(self, shape: Any, dtype: Any = np.float64) -> DeviceArray:
        """New memory, which holds no numbers."""
        _refuse_codes(np.dtype(dtype))
        found = np.empty(shape, dtype)
        found.reshape(-1).view(np.uint8)[...] = 0xFF
        return found.view(DeviceArray)

    def asarray(self, host: Any, dtype: Any = None) -> DeviceArray:
        """A copy on the device."""
        _refuse_codes(np.asarray(host).dtype)
        return np.array(host, dtype).view(DeviceArray)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def RawModule(self, *, path: str) -> Any:
        """Kernels of the element type that a file is named by."""

        def get_function(name: str) -> Any:
            self.loaded.append((Path(path).name, name))

            def function(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
                assert block == (256, 1, 1)
                self.launched.append((name, arguments))
                element = DType(Path(path).name.partition(".")[0])
                if not any(isinstance(one, np.ndarray) and one.dtype.type is np.void for one in arguments):
                    run(build(element), [Launch(name, element, (grid[0], grid[1], grid[2]), arguments)])

            return function

        return SimpleNamespace(get_function=get_function)


def _refuse_codes(dtype: np.dtype[Any]) -> None:
    """As CuPy 14 does, which has views of codes alone."""
    if dtype.name.startswith("float8"):
        raise ValueError(f"Unsupported dtype {dtype}")


class HostStream:
    """A stream on which everything is done when it is given: what is captured is, too, and a graph does nothing."""

    ptr = 7

    def __init__(self, synchronise: Callable[[], None]) -> None:
        self.synchronize = synchronise

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        """It is the only one."""

    def wait_event(self, event: HostEvent) -> None:
        """It is over."""

    def begin_capture(self) -> None:
        """See the class."""

    def end_capture(self) -> Any:
        """See the class."""
        return SimpleNamespace(launch=lambda stream: None)


class HostEvent:
    """An event that is over when it is recorded."""

    done = True

    def __init__(self, *, disable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: HostStream | None = None) -> None:
        """Take the time."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing to wait for."""
