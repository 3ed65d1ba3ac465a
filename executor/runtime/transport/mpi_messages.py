"""MPI messages: arrays as an MPI library takes them.

A library of MPI 4 (MPICH 4.1) counts bytes in 64 bits, and says so where arrays lie: those of a collective are one
buffer that begins at the lowest address, with counts and displacements. An older one (Open MPI 5 is of MPI 3.1) has 32
bits for both. There every array is a datatype of its own, an address and a length in pieces, so that none is too long
or too far from another (MPI 3.1, sections 4.1.5 and 5.8):

    MPI 4       Ialltoallv    memory + counts[] + displacements[]
    MPI 3       Ialltoallw    MPI_BOTTOM + one datatype of addresses for each array
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from executor.runtime.transport.base import HostArray, Parcel, bytes_of, check_contiguous

if TYPE_CHECKING:
    from mpi4py import MPI

INT_MAX = 2**31 - 1
"""The most that libraries before MPI 4 count up to."""
_PIECE = 2**30


class MpiMessages(Protocol):
    """What a library is given."""

    def send(self, comm: MPI.Intracomm, array: HostArray, target: int, tag: int) -> MPI.Request:
        """Start to send an array by `Issend`."""

    def receive(self, comm: MPI.Intracomm, array: HostArray, source: int, tag: int) -> MPI.Request:
        """Start to receive one by `Irecv`."""

    def exchange(
        self, lane: MPI.Intracomm, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> MPI.Request:
        """Start to send an array to, and to receive one from, every rank of a communicator."""

    def all_gather(
        self, lane: MPI.Intracomm, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> MPI.Request:
        """Start to send an array to every rank, in place where it is this rank's own `receive`."""


def messages_of(mpi: ModuleType | Any) -> MpiMessages:
    """As the library behind `mpi4py.MPI` takes them."""
    return AddressedMessages(mpi) if mpi.Get_version() < (4, 0) else CountedMessages(mpi)


@dataclass(frozen=True, slots=True)
class CountedMessages:
    """For libraries of MPI 4."""

    mpi: ModuleType | Any

    def send(self, comm: MPI.Intracomm, array: HostArray, target: int, tag: int) -> MPI.Request:
        """See `MpiMessages`."""
        return comm.Issend(_in_bytes(self.mpi, array), target, tag)

    def receive(self, comm: MPI.Intracomm, array: HostArray, source: int, tag: int) -> MPI.Request:
        """See `MpiMessages`."""
        return comm.Irecv(_in_bytes(self.mpi, array), source, tag)

    def exchange(
        self, lane: MPI.Intracomm, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> MPI.Request:
        """See `MpiMessages`."""
        return lane.Ialltoallv(self._buffer(send), self._buffer(receive))

    def all_gather(
        self, lane: MPI.Intracomm, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> MPI.Request:
        """See `MpiMessages`."""
        outgoing = self.mpi.IN_PLACE if send is receive[lane.rank] else _in_bytes(self.mpi, send)
        return lane.Iallgatherv(outgoing, self._buffer(receive))

    def _buffer(self, arrays: Sequence[HostArray | None]) -> tuple[object, ...]:
        """One buffer, counts and displacements in bytes; worked out once for a parcel."""
        if isinstance(arrays, Parcel) and arrays.worked_out is not None:
            known: tuple[object, ...] = arrays.worked_out
            return known
        check_contiguous(arrays)
        address = [None if a is None else _address(a) for a in arrays]
        first = min((a for a in address if a is not None), default=0)
        base = next((a for a, at in zip(arrays, address, strict=True) if at == first), None)
        counts = tuple(0 if a is None else a.nbytes for a in arrays)
        displacements = tuple(0 if at is None else at - first for at in address)
        found = None if base is None else bytes_of(base), (counts, displacements), self.mpi.BYTE
        if isinstance(arrays, Parcel):
            arrays.worked_out = found
        return found


@dataclass(frozen=True, slots=True)
class AddressedMessages:
    """For older libraries."""

    mpi: ModuleType | Any

    def send(self, comm: MPI.Intracomm, array: HostArray, target: int, tag: int) -> MPI.Request:
        """See `MpiMessages`."""
        return self._started(array, lambda message: comm.Issend(message, target, tag))

    def receive(self, comm: MPI.Intracomm, array: HostArray, source: int, tag: int) -> MPI.Request:
        """See `MpiMessages`."""
        return self._started(array, lambda message: comm.Irecv(message, source, tag))

    def _started(self, array: HostArray, start: Callable[[list[object]], MPI.Request]) -> MPI.Request:
        """A message of an array, which is a datatype where it is too long to be counted."""
        if array.nbytes <= INT_MAX:
            return start(_in_bytes(self.mpi, array))
        check_contiguous([array])
        datatype = self._datatype(array)
        request = start([self.mpi.BOTTOM, 1, datatype])
        _free([datatype])  # the library keeps what is under way
        return request

    def exchange(
        self, lane: MPI.Intracomm, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> MPI.Request:
        """See `MpiMessages`."""
        outgoing, incoming = self._datatypes(send), self._datatypes(receive)
        request = lane.Ialltoallw(self._buffer(outgoing), self._buffer(incoming))
        for arrays, datatypes in ((send, outgoing), (receive, incoming)):
            if not isinstance(arrays, Parcel):
                _free(datatypes)
        return request

    def all_gather(
        self, lane: MPI.Intracomm, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> MPI.Request:
        """See `MpiMessages`."""
        check_contiguous([send])
        outgoing = None if send is None else self._datatype(send)
        incoming = self._datatypes(receive)
        among = [rank for rank in range(lane.size) if rank != lane.rank or send is not receive[rank]]
        request = lane.Ialltoallw(self._buffer([outgoing] * lane.size, among), self._buffer(incoming, among))
        _free([outgoing])
        if not isinstance(receive, Parcel):
            _free(incoming)
        return request

    def _buffer(self, datatypes: Sequence[MPI.Datatype | None], among: Sequence[int] | None = None) -> list[object]:
        """Nothing where there is no array, and for ranks beside those `among` which it goes."""
        ranks = range(len(datatypes)) if among is None else among
        counts = [int(one is not None and rank in ranks) for rank, one in enumerate(datatypes)]
        return [
            self.mpi.BOTTOM,
            (counts, [0] * len(counts)),
            [self.mpi.BYTE if one is None else one for one in datatypes],
        ]

    def _datatypes(self, arrays: Sequence[HostArray | None]) -> list[MPI.Datatype | None]:
        """Of each array; made once for a parcel."""
        if isinstance(arrays, Parcel) and arrays.worked_out is not None:
            known: list[MPI.Datatype | None] = arrays.worked_out
            return known
        check_contiguous(arrays)
        found = [None if array is None else self._datatype(array) for array in arrays]
        if isinstance(arrays, Parcel):
            arrays.worked_out = found
        return found

    def _datatype(self, array: HostArray) -> MPI.Datatype | None:
        """Its address and its length, in pieces; None of an empty one."""
        if not array.nbytes:
            return None
        begin, starts = _address(array), range(0, array.nbytes, _PIECE)
        lengths = [min(_PIECE, array.nbytes - start) for start in starts]
        made: MPI.Datatype = self.mpi.BYTE.Create_hindexed(lengths, [begin + start for start in starts])
        return made.Commit()


def _in_bytes(mpi: ModuleType | Any, array: HostArray | None) -> list[object]:
    check_contiguous([array])
    return [None, 0, mpi.BYTE] if array is None else [bytes_of(array), array.nbytes, mpi.BYTE]


def _free(datatypes: Sequence[MPI.Datatype | None]) -> None:
    for one in datatypes:
        if one is not None:
            one.Free()


def _address(array: HostArray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found
