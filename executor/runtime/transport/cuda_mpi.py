"""CUDA-aware MPI: messages between the memories of GPUs, whose addresses MPI is given as they are.

MPI knows no streams. So the host waits for the current stream before it hands over an address, and whoever asks for a
movement waits for the device again before others may use what came. Collectives are sends and receives: nonblocking
collectives of Open MPI take no device memory ("Running CUDA-aware Open MPI", open-mpi.org/faq, question 1).

What is of the host, ragged rows among it, goes by the transport beside it (`of_host`), a communicator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from executor.runtime.transport.base import Group, Lane, PendingTransfer, Transport, TransportError, handed_over
from executor.runtime.transport.mpi import MpiLimits, MpiReceipt, MpiRequest, unclaimed_message
from strategy.graph.ops.base import Array
from strategy.sbp.sbp import Reduce

if TYPE_CHECKING:
    from mpi4py import MPI


class CudaMpiTransport:
    """See `executor.runtime.transport.base.Transport`. Made by all ranks of `comm` together.

    Args:
        mpi: `mpi4py.MPI`, or what stands in for it.
        comm: all ranks.
        host: of this rank, for arrays of the host.
        address: where an array begins in its device's memory.
        wait: waits until the current stream has done all that it was given.
    """

    waits_for_calls = False
    in_stream_order = False
    takes_device = True
    reduces = False

    def __init__(
        self,
        mpi: ModuleType | Any,
        comm: MPI.Intracomm | Any,
        host: Transport,
        address: Callable[[Array], int],
        wait: Callable[[], None],
    ) -> None:
        self._mpi, self._comm, self._host = mpi, comm.Dup(), host
        self._limits = MpiLimits.of(mpi, self._comm)
        self._address, self._wait = address, wait
        self.rank, self.size, self.bytes_sent = host.rank, host.size, host.bytes_sent

    @property
    def of_host(self) -> Transport:
        """The transport beside it."""
        return self._host

    def open(self, number: int, lane: Lane) -> None:
        """Messages need no lane: their number tells them apart."""
        self._host.open(number, lane)

    def exchange(
        self, group: Group, number: int, send: Sequence[Array | None], receive: Sequence[Array | None]
    ) -> PendingTransfer:
        """A message to, and one from, each of the group with which there is something to exchange."""
        self.bytes_sent["exchange"] += handed_over(group, self.rank, send)
        return self._swapped(group, number, send, receive)

    def all_gather(
        self, group: Group, number: int, send: Array | None, receive: Sequence[Array | None]
    ) -> PendingTransfer:
        """A message to everyone; none to itself where `send` is this rank's own `receive`."""
        me = group.index(self.rank)
        outgoing, incoming = [send] * len(group), list(receive)
        self.bytes_sent["all_gather"] += handed_over(group, self.rank, outgoing)
        if send is receive[me]:
            outgoing[me] = incoming[me] = None
        return self._swapped(group, number, outgoing, incoming)

    def all_reduce(self, group: Group, number: int, send: Array, receive: Array, reduce: Reduce) -> PendingTransfer:
        """Terms are combined in rank order by whoever asks."""
        return self._host.all_reduce(group, number, send, receive, reduce)

    reduce_scatter = all_reduce

    def send(self, target: int, number: int, array: Array) -> PendingTransfer:
        """One end of a message by `Issend`: over when it is matched."""
        if target != self.rank:
            self.bytes_sent["send"] += array.nbytes
        self._wait()
        request = self._comm.Issend(self._message(array), dest=target, tag=self._limits.tag_of(number))
        return MpiRequest(request, "the message to be taken by rank", target, number)

    def receive(self, source: int, number: int, array: Array) -> PendingTransfer:
        """The other end, by `Irecv`."""
        self._wait()
        return self._received(source, number, array)

    def barrier(self) -> None:
        """On the host."""
        self._host.barrier()

    def pause(self, idle_ns: int) -> None:
        """Give way, as on the host."""
        self._host.pause(idle_ns)

    def wake(self) -> None:
        """See `pause`."""
        self._host.wake()

    def abort(self) -> None:
        """What is under way ends with the process."""

    def close(self) -> None:
        """Free the communicators, all ranks together, after verifying that no message is left."""
        self.barrier()
        unclaimed = unclaimed_message(self._mpi, self._comm)
        self._host.close()
        self._comm.Free()
        if unclaimed:
            raise TransportError(f"rank {self.rank} never asked for {unclaimed}")

    def _swapped(
        self, group: Group, number: int, send: Sequence[Array | None], receive: Sequence[Array | None]
    ) -> PendingTransfer:
        """Empty pieces are empty on both sides, and no messages."""
        self._wait()
        parts: list[PendingTransfer] = [
            self._received(peer, number, array)
            for peer, array in zip(group, receive, strict=True)
            if array is not None and array.size
        ]
        tag = self._limits.tag_of(number)
        parts += [
            MpiRequest(self._comm.Isend(self._message(array), dest=peer, tag=tag), "a piece for rank", peer, number)
            for peer, array in zip(group, send, strict=True)
            if array is not None and array.size
        ]
        return _Together(parts)

    def _received(self, source: int, number: int, array: Array) -> MpiReceipt:
        request = self._comm.Irecv(self._message(array), source=source, tag=self._limits.tag_of(number))
        return MpiReceipt(request, source, number, array.nbytes, self._mpi.Status(), self._mpi.BYTE)

    def _message(self, array: Array) -> list[object]:
        """The memory of an array, by its address: MPI finds out itself whose it is."""
        self._limits.check(array.nbytes)
        return [self._mpi.buffer.fromaddress(self._address(array), array.nbytes), array.nbytes, self._mpi.BYTE]


@dataclass(slots=True)
class _Together:
    """Several messages, through when all are."""

    left: list[PendingTransfer]

    def test(self) -> bool:
        self.left = [one for one in self.left if not one.test()]
        return not self.left

    def describe(self) -> str:
        return "; ".join(one.describe() for one in self.left)
