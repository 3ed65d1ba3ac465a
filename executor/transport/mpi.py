"""MPI: library collectives on one communicator per lane, synchronous sends on a communicator of our own.

Rendezvous numbers travel as tags of point-to-point messages. Library collectives have no tag: what they rely on is
that the collectives of a communicator are started in one order on all its ranks, which a lane is made for.

Large messages. Everything is sent as bytes with 64-bit counts and displacements, which needs MPI 4 (MPICH 4.1,
Open MPI 5); under an older library a buffer beyond 2^31 - 1 bytes is refused before it is sent.

Polling. An MPI library moves messages only while it is called, so a worker that waits must poll, and must give way
where ranks outnumber cores: `pause` spins for a few polls, which costs nothing where a core is free, then yields.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from executor.transport.base import (
    Group,
    HostArray,
    Lane,
    Lanes,
    Request,
    TransportError,
    check_contiguous,
    handed_over,
)
from strategy.errors import EnvironmentLacks

if TYPE_CHECKING:
    from mpi4py import MPI

_SPIN_POLLS = 20
"""Polls in a row that may find nothing before the core is offered to others (about 10 us)."""
_INT_MAX = 2**31 - 1
_Spec = list[object]


class MpiTransport:
    """See `executor.transport.base.Transport`. Constructed by all ranks of `comm` together, with the same `lanes`."""

    def __init__(self, comm: MPI.Intracomm, lanes: Lanes) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Dup()
        self.rank = comm.rank
        self.size = comm.size
        self.bytes_sent = {"exchange": 0, "all_gather": 0, "send": 0}
        self._longest = _INT_MAX if MPI.Get_version() < (4, 0) else 2**63 - 1
        self._largest_tag: int = self._comm.Get_attr(MPI.TAG_UB) or 2**15 - 1
        self._made = {lane: self._make(lane) for lane in sorted(set(lanes.values())) if self.rank in lane.group}
        self._lanes = {number: self._made[lane] for number, lane in lanes.items() if lane in self._made}

    def _make(self, lane: Lane) -> MPI.Intracomm:
        members = self._comm.Get_group().Incl(lane.group)
        return self._comm.Create_group(members, tag=0)

    def exchange(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> Request:
        """Personalised all-to-all by `Ialltoallv`."""
        self.bytes_sent["exchange"] += handed_over(group, self.rank, send)
        request = self._lane(number, group).Ialltoallv(self._spec(send), self._spec(receive))
        return _MpiRequest(request, f"an exchange of ranks {group} (rendezvous {number})")

    def all_gather(
        self, group: Group, number: int, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> Request:
        """Everyone's array to everyone by `Iallgatherv`, in place where `send` is this rank's own `receive`."""
        self.bytes_sent["all_gather"] += handed_over(group, self.rank, [send] * len(group))
        own = receive[group.index(self.rank)]
        into = self._spec(receive)
        outgoing = self._mpi.IN_PLACE if send is own else self._one(send)
        request = self._lane(number, group).Iallgatherv(outgoing, into)
        return _MpiRequest(request, f"an all-gather of ranks {group} (rendezvous {number})")

    def send(self, target: int, number: int, array: HostArray) -> Request:
        """One end of a message by `Issend`: over when it is matched."""
        if target != self.rank:
            self.bytes_sent["send"] += array.nbytes
        request = self._comm.Issend(self._one(array), dest=target, tag=self._tag(number))
        return _MpiRequest(request, f"rank {target} to take the message of rendezvous {number}")

    def receive(self, source: int, number: int, array: HostArray) -> Request:
        """The other end, by `Irecv`."""
        request = self._comm.Irecv(self._one(array), source=source, tag=self._tag(number))
        return _MpiRequest(request, f"the message of rendezvous {number} from rank {source}", array.nbytes)

    def barrier(self) -> None:
        """Wait until every rank is here, giving way meanwhile."""
        request = self._comm.Ibarrier()
        idle_polls = 0
        while not request.Test():
            idle_polls += 1
            self.pause(idle_polls)

    def pause(self, idle_polls: int) -> None:
        """Spin for a few polls, then offer the core to others."""
        if idle_polls > _SPIN_POLLS:
            os.sched_yield()

    def close(self) -> None:
        """Free the communicators, all ranks together, after verifying that no message is left."""
        self.barrier()
        status = self._mpi.Status()
        unclaimed = self._comm.Iprobe(status=status)
        for comm in self._made.values():
            comm.Free()
        self._lanes = {}
        self._comm.Free()
        if unclaimed:
            what = f"{status.count} bytes from rank {status.source} (rendezvous {status.tag})"
            raise TransportError(f"rank {self.rank} never asked for {what}")

    def _lane(self, number: int, group: Group) -> MPI.Intracomm:
        comm = self._lanes.get(number)
        if comm is None or comm.size != len(group):
            raise TransportError(f"rank {self.rank} has no lane for rendezvous {number} of ranks {group}")
        return comm

    def _tag(self, number: int) -> int:
        if not 0 <= number <= self._largest_tag:
            raise TransportError(f"rendezvous {number} is beyond the largest tag of this MPI, {self._largest_tag}")
        return number

    def _one(self, array: HostArray | None) -> _Spec:
        check_contiguous([array])
        if array is None:
            return [None, 0, self._mpi.BYTE]
        self._check_length(array.nbytes)
        return [array, array.nbytes, self._mpi.BYTE]

    def _spec(self, arrays: Sequence[HostArray | None]) -> _Spec:
        """The arrays as one buffer that begins at the lowest address, with a displacement for each."""
        check_contiguous(arrays)
        address = [None if a is None else a.__array_interface__["data"][0] for a in arrays]
        first = min((a for a in address if a is not None), default=0)
        base = next((a for a, at in zip(arrays, address, strict=True) if at == first), None)
        counts = [0 if a is None else a.nbytes for a in arrays]
        displacements = [0 if at is None else at - first for at in address]
        self._check_length(max(map(sum, zip(counts, displacements, strict=True))))
        return [base, (counts, displacements), self._mpi.BYTE]

    def _check_length(self, nbytes: int) -> None:
        if nbytes > self._longest:
            raise EnvironmentLacks(
                f"this MPI library counts up to {self._longest} bytes in one message and {nbytes} are needed; "
                "use one of MPI 4 (MPICH 4.1, Open MPI 5), or split the tensor over more ranks"
            )


class _MpiRequest:
    """An MPI request; a receive also verifies how much came."""

    __slots__ = ("_expected", "_request", "_status", "_what")

    def __init__(self, request: MPI.Request, what: str, expected: int | None = None) -> None:
        from mpi4py import MPI

        self._request = request
        self._what = what
        self._expected = expected
        self._status = None if expected is None else MPI.Status()

    def test(self) -> bool:
        if not self._request.Test(self._status):
            return False
        if self._status is not None and self._status.count != self._expected:
            raise TransportError(f"{self._what}: {self._status.count} bytes came and {self._expected} were expected")
        self._expected, self._status = None, None
        return True

    def describe(self) -> str:
        return self._what
