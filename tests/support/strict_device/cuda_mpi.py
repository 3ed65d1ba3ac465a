"""A CUDA-aware MPI of strict devices: it is given addresses, and reads and writes there as the host does."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.runtime.transport.base import PendingTransfer, Transport
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from tests.support.strict_device.device import StrictDevice, StrictKernels

LARGEST_TAG = 2**20


def cuda_mpi_over(host: Transport, device: StrictDevice, kernels: StrictKernels) -> CudaMpiTransport:
    """The transport, whose messages go by that of the host."""
    return CudaMpiTransport(MPI, StrictComm(host, device), host, kernels.address, kernels.wait)


def _from_address(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


@dataclass(slots=True)
class _Status:
    count: int = 0

    def Get_elements(self, byte: str) -> int:
        """How many bytes have come."""
        assert byte == MPI.BYTE
        return self.count


MPI = SimpleNamespace(
    BYTE="bytes",
    TAG_UB="the largest tag",
    Status=_Status,
    Get_version=lambda: (4, 1),
    buffer=SimpleNamespace(fromaddress=_from_address),
)
"""What is asked of `mpi4py.MPI`."""


@dataclass(frozen=True, slots=True)
class StrictComm:
    """What is asked of a communicator. Memory that is moved must be the device's, and left alone by its streams."""

    host: Transport
    device: StrictDevice
    handed: list[int] = field(default_factory=list)
    """Bytes of each message."""

    def Dup(self) -> StrictComm:
        """Messages have numbers that tell them apart."""
        return self

    def Get_attr(self, name: str) -> int:
        """Of `TAG_UB` alone."""
        assert name == MPI.TAG_UB
        return LARGEST_TAG

    def Isend(self, message: list[Any], dest: int, tag: int) -> _Request:
        """The device must have written it."""
        array, nbytes, _ = message
        self.handed.append(nbytes)
        self.device.on_host([array], [], "MPI's send")
        return _Request(self.host.send(dest, tag, array), nbytes)

    Issend = Isend

    def Irecv(self, message: list[Any], source: int, tag: int) -> _Request:
        """The device must have done with what was there."""
        array, nbytes, _ = message
        self.device.on_host([], [array], "MPI's receive")
        return _Request(self.host.receive(source, tag, array), nbytes)


@dataclass(frozen=True, slots=True)
class _Request:
    pending: PendingTransfer
    nbytes: int

    def Test(self, status: _Status | None = None) -> bool:
        if status is not None:
            status.count = self.nbytes
        return self.pending.test()
