"""Whether MPI takes memory of GPUs: asked of the library, agreed by the ranks; and who is handed such memory."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from executor.runtime.transport import cuda_support as asked
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from executor.runtime.transport.cuda_support import CudaSupport, agreed_cuda_support, cuda_support
from executor.runtime.transport.loopback import LoopbackHub
from strategy.base.errors import EnvironmentLacks, InternalError
from strategy.sbp.sbp import Reduce
from tests.support.strict_device.cuda_mpi import MPI, StrictComm

NO_WORD = "the library has neither MPIX_Query_cuda_support nor MPIX_GPU_query_support"


def comm_of(kinds: str | None = None, others: Sequence[bool] = ()) -> Any:
    """A communicator with an info, whose other ranks have found so much."""
    info = SimpleNamespace(Get={"mpi_memory_alloc_kinds": kinds}.get)

    def all_gather(own: Any, every: Any) -> None:
        every[:] = [*own, *others]

    return SimpleNamespace(Get_info=lambda: info, size=1 + len(others), Allgather=all_gather)


def library_of(**found: int) -> Any:
    """A library with some of the functions, and what they say."""

    def query_gpu(kind: int, flag: Any) -> int:
        assert kind == 0
        flag._obj.value = found["gpu"]
        return 0

    functions = {"MPIX_GPU_query_support": query_gpu} if "gpu" in found else {}
    if "cuda" in found:
        functions["MPIX_Query_cuda_support"] = lambda: found["cuda"]
    return SimpleNamespace(**functions)


@pytest.mark.parametrize(
    ("kinds", "functions", "found", "how"),
    [
        ("mpi,system,cuda:device", {"cuda": 0}, True, "mpi_memory_alloc_kinds is mpi,system,cuda:device"),
        ("system, cuda", {}, True, "mpi_memory_alloc_kinds is system, cuda"),
        ("mpi,system", {"cuda": 1, "gpu": 0}, True, "MPIX_Query_cuda_support says 1"),
        (None, {"cuda": 0, "gpu": 1}, False, "MPIX_Query_cuda_support says 0"),
        (None, {"gpu": 1}, True, "MPIX_GPU_query_support says 1"),
        (None, {"gpu": 0}, False, "MPIX_GPU_query_support says 0"),
        ("mpi,cudaless", {}, False, NO_WORD),
        (None, {}, False, NO_WORD),
    ],
)
def test_the_library_is_taken_at_its_word(kinds: str | None, functions: dict[str, int], found: bool, how: str) -> None:
    assert cuda_support(comm_of(kinds), library_of(**functions)) == CudaSupport(found, how)


@pytest.mark.parametrize(
    ("own", "others", "wanted"),
    [
        (1, [True], "moves memory of GPUs (MPIX_Query_cuda_support says 1)"),
        (1, [True, False], "does not move memory of GPUs (not on ranks [2])"),
        (0, [False], "does not move memory of GPUs (MPIX_Query_cuda_support says 0)"),
    ],
)
def test_all_ranks_agree(monkeypatch: pytest.MonkeyPatch, own: int, others: list[bool], wanted: str) -> None:
    monkeypatch.setattr(asked, "load_mpi", lambda: None)
    monkeypatch.setattr(asked, "mpi_library", lambda mpi: library_of(cuda=own))
    assert str(agreed_cuda_support(comm_of(None, others))) == wanted


class _Memory:
    """Memory of a device, of which the host has nothing but the address."""

    def __init__(self, nbytes: int) -> None:
        self.size = self.nbytes = nbytes


def two_ranks(events: list[str]) -> list[CudaMpiTransport]:
    """Transports over a communicator that notes what it is asked for."""
    hub = LoopbackHub(2)

    class Comm(StrictComm):
        def Isend(self, message: list[Any], dest: int, tag: int) -> Any:
            events.append(f"to {dest}: {message[1]} bytes, tag {tag}")

        Issend = Isend

        def Irecv(self, message: list[Any], source: int, tag: int) -> Any:
            events.append(f"from {source}: {message[1]} bytes, tag {tag}")

    hosts = [hub.transport(rank) for rank in range(2)]
    device: Any = None
    address, wait = (lambda array: id(array)), (lambda: events.append("wait"))
    return [CudaMpiTransport(MPI, Comm(host, device), host, address, wait) for host in hosts]


def test_the_host_waits_for_the_stream_before_anything_is_handed_over() -> None:
    events: list[str] = []
    first = two_ranks(events)[0]
    four, eight, none = _Memory(4), _Memory(8), _Memory(0)
    first.exchange((0, 1), 7, [None, four], [None, eight])
    first.all_gather((0, 1), 8, four, [four, eight])
    first.all_gather((0, 1), 9, four, [eight, none])
    first.send(1, 3, eight)
    first.receive(1, 4, four)
    assert events == [
        *("wait", "from 1: 8 bytes, tag 7", "to 1: 4 bytes, tag 7"),
        *("wait", "from 1: 8 bytes, tag 8", "to 1: 4 bytes, tag 8"),
        *("wait", "from 0: 8 bytes, tag 9", "to 0: 4 bytes, tag 9", "to 1: 4 bytes, tag 9"),
        *("wait", "to 1: 8 bytes, tag 3"),
        *("wait", "from 1: 4 bytes, tag 4"),
    ]
    assert first.bytes_sent == {"exchange": 4, "all_gather": 8, "send": 8}
    assert first.of_host.bytes_sent is first.bytes_sent


def test_it_moves_and_does_not_reduce() -> None:
    first = two_ranks([])[0]
    with pytest.raises(InternalError, match="moves and does not reduce"):
        first.all_reduce((0, 1), 0, _Memory(4), _Memory(4), Reduce.SUM)


def test_what_an_old_library_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MPI, "Get_version", lambda: (3, 1))
    with pytest.raises(
        EnvironmentLacks, match="counts up to 2147483647 bytes in one message and 2147483648 are needed"
    ):
        two_ranks([])[0].send(1, 0, _Memory(2**31))
