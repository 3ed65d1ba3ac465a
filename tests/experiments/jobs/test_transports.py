"""By what a training moves arrays between ranks, and what it says of it; libraries are stood in for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from executor.runtime.transport.base import Transport
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from executor.runtime.transport.cuda_support import CudaSupport
from executor.runtime.transport.loopback import LoopbackHub
from experiments.jobs import transports
from experiments.jobs.transports import open_transport
from strategy.program.program import Program
from tests.support.strict_device.cuda_mpi import MPI, StrictComm

NOWHERE: Any = None


def opened(monkeypatch: pytest.MonkeyPatch, *, host: bool, nccl: bool, cuda: bool) -> tuple[Transport, Transport, str]:
    """The transport of MPI, the one that is used, and what is said."""
    of_host = LoopbackHub(1).transport(0)
    beside: Any = SimpleNamespace(of_host=of_host)
    monkeypatch.setattr(transports, "MpiTransport", lambda comm, lanes: of_host)
    monkeypatch.setattr(transports, "over_nccl", lambda given, program: beside if nccl else given)
    monkeypatch.setattr(transports, "nccl_version", lambda: 22809 if nccl else None)
    monkeypatch.setattr(transports, "load_mpi", lambda: MPI)
    monkeypatch.setattr(transports, "agreed_cuda_support", lambda comm: CudaSupport(cuda, "it says so"))
    kernels: Any = SimpleNamespace(host=host, address=id, wait=lambda: None)
    comm: Any = StrictComm(of_host, NOWHERE)
    return of_host, *open_transport(comm, Program(1, (), (), ()), kernels)


def test_arrays_of_the_host_go_by_mpi_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    of_host, found, said = opened(monkeypatch, host=True, nccl=True, cuda=True)
    assert found is of_host
    assert said == ""


def test_nccl_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    of_host, found, said = opened(monkeypatch, host=False, nccl=True, cuda=True)
    assert found.of_host is of_host
    assert said == "NCCL 22809"


def test_mpi_is_given_addresses_where_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    of_host, found, said = opened(monkeypatch, host=False, nccl=False, cuda=True)
    assert isinstance(found, CudaMpiTransport)
    assert found.of_host is of_host
    assert said == "no NCCL; MPI moves memory of GPUs (it says so)"


def test_else_arrays_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    of_host, found, said = opened(monkeypatch, host=False, nccl=False, cuda=False)
    assert found is of_host
    assert said == "no NCCL; arrays go by pinned memory, for MPI does not move memory of GPUs (it says so)"
