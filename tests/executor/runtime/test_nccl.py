"""The transport over NCCL: one communicator per lane in one order, calls on the current stream, errors named."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executor.runtime.transport.base import Lane, TransportError, meetings_of
from executor.runtime.transport.loopback import LoopbackHub
from executor.runtime.transport.nccl import DTYPES, OPERATIONS, NcclTransport
from strategy.sbp.sbp import Reduce
from tests.executor.programs import data_parallel, pipeline

STREAM = 77
WHOLE, PAIR = Lane((0, 1, 2), "compute"), Lane((1, 2), "messages 1>2")
LANES = {3: WHOLE, 5: PAIR, 8: WHOLE}
CUDA = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=STREAM))


class DeviceBytes:
    """Memory of a device: an address and a length."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.data, self.nbytes, self.size = SimpleNamespace(ptr=pointer), nbytes, nbytes


class FakeNccl:
    """`cupy.cuda.nccl` on one rank, as a list of the calls."""

    NCCL_UINT8 = 1

    def __init__(self, rank: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.broken = False
        self._names = (bytes([rank, count] * 64) for count in range(9))

    def get_unique_id(self) -> bytes:
        return next(self._names)

    def groupStart(self) -> None:
        self.calls.append(("start",))

    def groupEnd(self) -> None:
        self.calls.append(("end",))

    def NcclCommunicator(self, count: int, name: bytes, position: int) -> Any:
        self.calls.append(("made", count, name[:2], position))

        def noted(kind: str) -> Any:
            return lambda *arguments: self.calls.append((kind, *arguments))

        def check_async_error() -> None:
            if self.broken:
                raise RuntimeError("NCCL_ERROR_REMOTE_ERROR")

        kinds = ("send", "recv", "allGather", "allReduce", "reduceScatter", "abort", "destroy")
        return SimpleNamespace(check_async_error=check_async_error, **{kind: noted(kind) for kind in kinds})


def three_ranks() -> list[tuple[NcclTransport, FakeNccl]]:
    """Made at once, as communicators are."""
    hub, fakes = LoopbackHub(3), [FakeNccl(rank) for rank in range(3)]
    found: dict[int, NcclTransport] = {}

    def make(rank: int) -> None:
        found[rank] = NcclTransport(hub.transport(rank), LANES, fakes[rank], CUDA)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [(found[rank], fakes[rank]) for rank in range(3)]


def test_communicators_are_made_once_in_plan_order_by_the_id_of_their_first_rank() -> None:
    made = [fake.calls for _, fake in three_ranks()]
    assert made == [
        [("made", 3, bytes([0, 0]), 0)],
        [("made", 3, bytes([0, 0]), 1), ("made", 2, bytes([1, 0]), 0)],
        [("made", 3, bytes([0, 0]), 2), ("made", 2, bytes([1, 0]), 1)],
    ]


def test_an_exchange_is_one_group_of_calls_on_the_current_stream() -> None:
    transport, fake = three_ranks()[1]
    fake.calls.clear()
    send = [DeviceBytes(100, 8), None, DeviceBytes(200, 16)]
    request = transport.exchange((0, 1, 2), 3, send, [None, None, DeviceBytes(300, 24)])
    assert request.test()
    calls = [("send", 100, 8, 1, 0, STREAM), ("send", 200, 16, 1, 2, STREAM), ("recv", 300, 24, 1, 2, STREAM)]
    assert fake.calls == [("start",), *calls, ("end",)]
    assert transport.bytes_sent["exchange"] == 24


def test_pieces_in_a_row_are_gathered_by_one_call_and_others_by_sends() -> None:
    transport, fake = three_ranks()[0]
    for begins, in_a_row in (((500, 508, 516), True), ((500, 508, 600), False)):
        fake.calls.clear()
        receive = [DeviceBytes(begin, 8) for begin in begins]
        transport.all_gather((0, 1, 2), 8, receive[0], receive)
        kinds = [call[0] for call in fake.calls]
        assert kinds == (["allGather"] if in_a_row else ["start", *["send"] * 3, *["recv"] * 3, "end"])
    assert transport.bytes_sent["all_gather"] == 2 * 16


def test_terms_are_reduced_by_one_call_of_their_dtype_on_the_current_stream() -> None:
    transport, fake = three_ranks()[1]
    fake.calls.clear()
    terms, whole, piece = (Terms(pointer, count) for pointer, count in ((100, 6), (200, 6), (300, 2)))
    assert transport.all_reduce((0, 1, 2), 3, terms, whole, Reduce.SUM).test()
    assert transport.reduce_scatter((0, 1, 2), 8, terms, piece, Reduce.MAX).test()
    assert fake.calls == [("allReduce", 100, 200, 6, 9, 0, STREAM), ("reduceScatter", 100, 300, 2, 9, 2, STREAM)]
    sent = transport.bytes_sent
    assert (sent["exchange"], sent["all_gather"]) == (8 + 8, 8)


class Terms:
    """Memory of a device that holds bfloat16."""

    dtype = "bfloat16"

    def __init__(self, pointer: int, size: int) -> None:
        self.data, self.size, self.nbytes = SimpleNamespace(ptr=pointer), size, 2 * size


def test_messages_of_one_rendezvous_go_in_one_group_to_places_in_their_lane() -> None:
    transport, fake = three_ranks()[2]
    fake.calls.clear()
    requests = [transport.receive(1, 5, DeviceBytes(10, 4)), transport.send(1, 5, DeviceBytes(20, 4))]
    assert fake.calls == []
    assert all(request.test() for request in requests)
    assert fake.calls == [("start",), ("recv", 10, 4, 1, 0, STREAM), ("send", 20, 4, 1, 0, STREAM), ("end",)]
    transport.send(1, 5, DeviceBytes(20, 4))
    with pytest.raises(TransportError, match="messages of rendezvous 5 and 3 are mixed"):
        transport.send(1, 3, DeviceBytes(20, 4))


def test_arrays_of_the_host_go_by_the_transport_beside_it() -> None:
    ranks = three_ranks()
    taken = np.zeros(3)
    arriving = ranks[2][0].of_host.receive(1, 5, taken)
    leaving = ranks[1][0].of_host.send(2, 5, np.arange(3.0))
    assert arriving.test()
    assert leaving.test()
    assert taken.tolist() == [0, 1, 2]


def test_an_asynchronous_error_is_found_while_waiting_and_names_the_lane() -> None:
    transport, fake = three_ranks()[1]
    transport.pause(0)
    fake.broken, transport._checked_ns = True, 0
    with pytest.raises(TransportError, match=r"NCCL between ranks \(0, 1, 2\) \(compute\): NCCL_ERROR_REMOTE"):
        transport.pause(0)
    fake.calls.clear()
    transport.abort()
    assert fake.calls == [("abort",), ("abort",)]


def test_every_rendezvous_has_a_lane() -> None:
    """Collectives have that of the host's transport; a transfer, the ranks that meet."""
    (program, _), (stages, _) = data_parallel(2), pipeline(2, in_flight=1)
    assert {lane.group for lane in meetings_of(program).values()} == {(0, 1)}
    assert all(lane.group == (0, 1) and lane.label.startswith("messages") for lane in meetings_of(stages).values())


def test_cupy_has_what_is_called() -> None:
    """By the installed package's own signatures; no device is needed."""
    pytest.importorskip("cupy")
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("no NCCL is installed")
    one = nccl.NcclCommunicator
    counts = {"send": 5, "recv": 5, "allGather": 5, "allReduce": 6, "reduceScatter": 6, "abort": 0, "destroy": 0}
    for kind, wanted in counts.items():
        heading = (getattr(one, kind).__doc__ or "").splitlines()[0]
        assert heading.count(",") == wanted, heading
    for dtype, number in DTYPES.items():
        assert getattr(nccl, f"NCCL_{dtype.upper()}", number) == number
    for reduce, number in OPERATIONS.items():
        assert getattr(nccl, f"NCCL_{reduce.upper()}", number) == number
    assert {"get_unique_id", "groupStart", "groupEnd", "NCCL_UINT8"} <= set(dir(nccl))
