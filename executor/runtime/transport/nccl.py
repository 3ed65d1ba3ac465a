"""NCCL between GPUs: movements are calls that are ordered on the current stream, where ranks wait for one another.

One communicator per lane, made once, by all its ranks together, in the order of the program's rendezvous. Calls are
issued in the order of the launch list, which is one over all communicators of all ranks, as NCCL asks for. What the
host moves itself, ragged rows, goes by the transport beside it (`of_host`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from executor.runtime.transport.base import (
    Group,
    Lane,
    Lanes,
    PendingTransfer,
    Transport,
    TransportError,
    handed_over,
    meetings_of,
    wait,
)
from strategy.graph.ops.base import Array
from strategy.program.program import Program
from strategy.sbp.sbp import Reduce

_ERRORS_EVERY_NS = 10_000_000
_ABORT_S = 10.0
"""After so long, communicators that do not end are left to the end of the process."""


def nccl_version() -> int | None:
    """Of the library: 23204 is 2.32.4; None where it is missing."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        return None
    return int(nccl.get_version()) if nccl.available else None


def over_nccl(host: Transport, program: Program) -> Transport:
    """NCCL beside a transport of the host, for all ranks of a program; that transport alone where NCCL is missing.

    Then everything is staged through pinned memory of the host. All ranks call it together.
    """
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError:
        return host
    if not nccl.available:
        return host
    return NcclTransport(host, meetings_of(program), nccl, cupy.cuda)


class NcclTransport:
    """See `executor.runtime.transport.base.Transport`.

    Args:
        host: of this rank, for arrays of the host; it also tells the ranks of a communicator its id.
        lanes: rendezvous number -> lane, transfers included.
        nccl: `cupy.cuda.nccl`, or what stands in for it.
        cuda: `cupy.cuda`, which knows the current stream.
    """

    waits_for_calls = False
    in_stream_order = True
    takes_device = True
    reduces = True

    def __init__(self, host: Transport, lanes: Lanes, nccl: ModuleType | Any, cuda: ModuleType | Any) -> None:
        self._host, self._nccl, self._cuda = host, nccl, cuda
        self.rank, self.size, self.bytes_sent = host.rank, host.size, host.bytes_sent
        self._lanes = {number: lane for number, lane in sorted(lanes.items()) if self.rank in lane.group}
        self._made: dict[Lane, Any] = {}
        for number, lane in self._lanes.items():
            self._make(number, lane)
        self._messages: tuple[int, list[tuple[bool, int, Array]]] | None = None
        self._checked_ns = 0

    def _make(self, number: int, lane: Lane) -> None:
        """The communicator of a lane, unless it is there: its first rank tells the others the id."""
        if lane in self._made:
            return
        first, *others = lane.group
        if self.rank == first:
            name = self._nccl.get_unique_id()
            told = np.frombuffer(bytes(name), np.uint8)
            requests = [self._host.send(rank, number, told) for rank in others]
        else:
            told = np.empty(ID_NBYTES, np.uint8)
            requests = [self._host.receive(first, number, told)]
        for request in requests:
            wait(request, self._host)
        position = lane.group.index(self.rank)
        self._made[lane] = self._nccl.NcclCommunicator(len(lane.group), told.tobytes(), position)

    @property
    def of_host(self) -> Transport:
        """The transport beside it."""
        return self._host

    def open(self, number: int, lane: Lane) -> None:
        """Make the communicator of a lane, its ranks together."""
        self._host.open(number, lane)
        if number not in self._lanes:
            self._lanes[number] = lane
            self._make(number, lane)

    def exchange(
        self, group: Group, number: int, send: Sequence[Array | None], receive: Sequence[Array | None]
    ) -> PendingTransfer:
        """Sends and receives in one group of calls."""
        self.bytes_sent["exchange"] += handed_over(group, self.rank, send)
        self._together(number, [*_calls(True, group, send), *_calls(False, group, receive)])
        return _ORDERED

    def all_gather(
        self, group: Group, number: int, send: Array | None, receive: Sequence[Array | None]
    ) -> PendingTransfer:
        """As one call, where the pieces are equal and lie in a row; else as sends and receives."""
        outgoing = [send] * len(group)
        self.bytes_sent["all_gather"] += handed_over(group, self.rank, outgoing)
        if send is not None and _in_a_row(send, receive):
            into = receive[0]
            assert into is not None
            arguments = (send.data.ptr, into.data.ptr, send.nbytes, self._nccl.NCCL_UINT8, self._stream())
            self._made[self._lanes[number]].allGather(*arguments)
        else:
            self._together(number, [*_calls(True, group, outgoing), *_calls(False, group, receive)])
        return _ORDERED

    def all_reduce(self, group: Group, number: int, send: Array, receive: Array, reduce: Reduce) -> PendingTransfer:
        """One call; bytes are those of a ring."""
        sent = send.nbytes * (len(group) - 1) // len(group)
        self.bytes_sent["exchange"] += sent
        self.bytes_sent["all_gather"] += sent
        self._reduced(number, "allReduce", send, receive, send.size, reduce)
        return _ORDERED

    def reduce_scatter(self, group: Group, number: int, send: Array, receive: Array, reduce: Reduce) -> PendingTransfer:
        """One call; bytes are those of a ring."""
        self.bytes_sent["exchange"] += send.nbytes - receive.nbytes
        self._reduced(number, "reduceScatter", send, receive, receive.size, reduce)
        return _ORDERED

    def _reduced(self, number: int, call: str, send: Array, receive: Array, count: int, reduce: Reduce) -> None:
        arguments = (send.data.ptr, receive.data.ptr, count, DTYPES[str(send.dtype)], OPERATIONS[reduce])
        getattr(self._made[self._lanes[number]], call)(*arguments, self._stream())

    def send(self, target: int, number: int, array: Array) -> PendingTransfer:
        """One end of a message; goes with the others that are asked for before any of them is tested."""
        self.bytes_sent["send"] += array.nbytes if target != self.rank else 0
        return self._message(number, (True, target, array))

    def receive(self, source: int, number: int, array: Array) -> PendingTransfer:
        """The other end."""
        return self._message(number, (False, source, array))

    def barrier(self) -> None:
        """On the host."""
        self._host.barrier()

    def pause(self, idle_ns: int) -> None:
        """Give way, and see whether a communicator has failed meanwhile.

        Raises:
            TransportError: with the lane, and what NCCL says.
        """
        now_ns = time.perf_counter_ns()
        if now_ns - self._checked_ns >= _ERRORS_EVERY_NS:
            self._checked_ns = now_ns
            for lane, made in self._made.items():
                try:
                    made.check_async_error()
                except Exception as error:
                    raise TransportError(f"NCCL between ranks {lane.group} ({lane.label}): {error}") from error
        self._host.pause(idle_ns)

    def wake(self) -> None:
        """See `pause`: the host's transport does the waiting."""
        self._host.wake()

    def abort(self) -> None:
        """Abort all communicators: calls under way end, on the device too."""
        ending = threading.Thread(target=self._abort_all, daemon=True)
        ending.start()
        ending.join(_ABORT_S)
        self._host.abort()

    def _abort_all(self) -> None:
        for made in self._made.values():
            made.abort()

    def close(self) -> None:
        """End all communicators, their ranks together."""
        for made in self._made.values():
            made.destroy()
        self._made = {}
        self._host.close()

    def _message(self, number: int, call: tuple[bool, int, Array]) -> PendingTransfer:
        if self._messages is not None and self._messages[0] != number:
            raise TransportError(f"messages of rendezvous {self._messages[0]} and {number} are mixed")
        if self._messages is None:
            self._messages = (number, [])
        self._messages[1].append(call)
        return _Message(self)

    def flush(self) -> None:
        """Call for the messages that were asked for."""
        if self._messages is not None:
            (number, calls), self._messages = self._messages, None
            self._together(number, calls)

    def _together(self, number: int, calls: Sequence[tuple[bool, int, Array]]) -> None:
        """Sends and receives, (whether it is sent, peer, array), as one group: none waits for another."""
        lane, stream, nccl = self._lanes[number], self._stream(), self._nccl
        made = self._made[lane]
        nccl.groupStart()
        try:
            for is_sent, peer, array in calls:
                move = made.send if is_sent else made.recv
                move(array.data.ptr, array.nbytes, nccl.NCCL_UINT8, lane.group.index(peer), stream)
        finally:
            nccl.groupEnd()

    def _stream(self) -> int:
        return int(self._cuda.get_current_stream().ptr)


DTYPES: Mapping[str, int] = {"int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
"""`ncclDataType_t` of nccl.h: CuPy has no name for all of them."""
OPERATIONS: Mapping[Reduce, int] = {Reduce.SUM: 0, Reduce.MAX: 2, Reduce.MIN: 3}
"""`ncclRedOp_t`."""
ID_NBYTES = 128
"""`NCCL_UNIQUE_ID_BYTES`."""


class _Ordered:
    """A movement that is ordered on its stream: the host has nothing to wait for."""

    def test(self) -> bool:
        return True

    def describe(self) -> str:
        return "a movement on a stream"


class _Message(_Ordered):
    """A message that goes with others, at the latest when it is tested."""

    def __init__(self, transport: NcclTransport) -> None:
        self._transport = transport

    def test(self) -> bool:
        self._transport.flush()
        return True


_ORDERED = _Ordered()


def _calls(is_sent: bool, group: Group, arrays: Sequence[Array | None]) -> list[tuple[bool, int, Array]]:
    pairs = zip(group, arrays, strict=True)
    return [(is_sent, peer, array) for peer, array in pairs if array is not None and array.size]


def _in_a_row(send: Array, receive: Sequence[Array | None]) -> bool:
    """Whether all pieces are as long as `send` and lie one behind the other."""
    if any(array is None or array.nbytes != send.nbytes for array in receive) or not send.nbytes:
        return False
    places = [array.data.ptr for array in receive if array is not None]
    return places == [places[0] + i * send.nbytes for i in range(len(places))]
