"""The seam between a worker and the device that its ops run on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.streams import DeviceStreams
from executor.runtime.transport.base import HostArray
from strategy.base.errors import InputError, did_you_mean
from strategy.graph.ops.base import Array, ArrayModule, Call, OpDef
from strategy.graph.ops.scratch import ScratchSizes

BACKENDS = ("numpy", "cupy")


class Kernels(Protocol):
    """Arrays and ops on one device.

    When a bound act, `download` or `upload` returns, the work is done, or it is ordered on the current stream of a
    device that has `streams`.
    """

    @property
    def xp(self) -> ArrayModule:
        """The array module that ops are written against."""
        ...

    @property
    def host(self) -> bool:
        """Whether its arrays are host memory, which transports move as they are."""
        ...

    @property
    def batched(self) -> Collection[str]:
        """Kinds of ops of which acts that follow one another are launched together, before anything else is."""
        ...

    @property
    def streams(self) -> DeviceStreams | None:
        """The streams of a device that is given work before it has done what came before; None where there are none."""
        ...

    def wait(self) -> None:
        """Wait until all that was ordered on the current stream is done."""
        ...

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        """An act of an op on the arrays that `call` has now; its number and `first_of_piece` are read at each run."""
        ...

    def counts_rows(self, definition: OpDef, call: Call) -> bool:
        """Whether acts like this one, on ragged rows that operands have alike, need no host that knows their count."""
        ...

    def scratch(self, definition: OpDef, call: Call) -> ScratchSizes:
        """What acts like this one ask their scratch for, at most."""
        ...

    def address(self, array: Array) -> int:
        """Where an array begins in its device's memory."""
        ...

    def host_like(self, array: Array) -> HostArray:
        """A host array of this shape and dtype, to stage transfers through (pinned where the device has that)."""
        ...

    def download(self, array: Array, host: HostArray) -> None:
        """Copy an array of the device into a host array."""
        ...

    def upload(self, host: HostArray, array: Array) -> None:
        """Copy a host array into an array of the device."""
        ...


def open_kernels(backend: str, *, device: int = 0, shared: bool = False) -> Kernels:
    """Kernels of a backend, or "timed-wait", which compute nothing.

    `device` is the index of the GPU, beyond the last if it may be `shared`.

    Raises:
        InputError: no such backend.
        EnvironmentLacks: CuPy or a GPU is missing.
    """
    if backend == "numpy":
        from executor.runtime.kernels.numpy import NumpyKernels

        return NumpyKernels()
    if backend == "cupy":
        from executor.runtime.kernels.cupy import CupyKernels

        return CupyKernels(device, shared=shared)
    if backend == "timed-wait":
        from executor.runtime.kernels.timed_wait import TimedWaitKernels

        return TimedWaitKernels()
    raise InputError("unknown backend", where="--backend", got=backend, hint=did_you_mean(backend, BACKENDS))
