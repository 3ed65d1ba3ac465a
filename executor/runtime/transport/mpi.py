"""MPI: library collectives on one communicator per lane, synchronous sends on a communicator of our own.

Rendezvous numbers travel as tags of point-to-point messages. Library collectives have no tag: what they rely on is
that the collectives of a communicator are started in one order on all its ranks, which a lane is made for.

Everything is sent as bytes, as the library takes them (`mpi_messages`).

Polling. An MPI library moves messages only while it is called, so a worker that waits must poll, and must give way
where ranks outnumber cores: there `pause` is a bare sched_yield at first, 3 to 20 times faster than sleeping, whose
shortest nap is 50 microseconds on Linux. With a core per rank it first polls on: whoever yields to a stranger's
process waits out that one's time slice, some milliseconds, while its own message has long come. After a longer wait it
naps, for a small share of the time that it has waited already: the core is then free for the ranks that are waited for,
or for strangers, and what comes is seen at most that share later.

A call moves no more of a message than a segment or two, over a wire some 16 KiB. So one look at a long message is many
calls: as many as take it on by what the wire has brought meanwhile, which else waits in the sockets for the next look.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from executor.runtime.transport.base import (
    Group,
    HostArray,
    Lane,
    Lanes,
    PendingTransfer,
    TransportError,
    handed_over,
)
from executor.runtime.transport.mpi_messages import INT_MAX, messages_of
from strategy.base.errors import EnvironmentLacks, InternalError
from strategy.sbp.sbp import Reduce

if TYPE_CHECKING:
    from mpi4py import MPI

_PATIENCE_NS = 1_000_000
"""How long a rank with a core of its own polls before it gives way."""
_AWAKE_NS = {True: 2_000_000, False: 100_000}
"""Whether it has one -> how long it polls and gives way before it naps."""
_NAP_SHARE = 0.04
"""Of the time waited so far."""
_LONGEST_NAP_NS = 1_000_000
_POLL_NAP_S = 0.0005
_CALL_NBYTES = 16 * 2**10
_MOST_CALLS = 32
"""Of a message, what a call may move; and how many calls are one look at most."""
_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")


def load_mpi() -> ModuleType:
    """`mpi4py.MPI`, which starts MPI.

    Raises:
        EnvironmentLacks: there is no mpi4py, or it finds no MPI library that it can load.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentLacks(
            f'MPI cannot be loaded: {" ".join(str(error).split())}; `pip install "sbplan[mpich]"` brings a library'
        ) from error
    return MPI


def open_world() -> MPI.Intracomm:
    """All ranks of the job.

    MPICH gives its segment of shared memory a name until the job ends, and leaves it behind where that is no good end:
    2 MB a time, until /dev/shm is full and jobs die of SIGBUS. Once all ranks have it, nobody needs its name.

    Raises:
        EnvironmentLacks: as `load_mpi`.
    """
    comm: MPI.Intracomm = load_mpi().COMM_WORLD
    if comm.size > 1:
        everybody = comm.Ibarrier()
        while not everybody.Test():
            time.sleep(_POLL_NAP_S)
        for name in _segments():
            with suppress(OSError):  # another rank was first
                Path(name).unlink()
    return comm


def _segments() -> set[str]:
    """MPICH's segments of shared memory that this process has, by their paths."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6 and _SEGMENT.fullmatch(fields[5])}


@dataclass(frozen=True, slots=True)
class MpiLimits:
    """What one message may be, by an MPI library that is given addresses and counts of bytes."""

    nbytes: int
    tag: int

    @staticmethod
    def of(mpi: ModuleType | Any, comm: MPI.Intracomm | Any) -> MpiLimits:
        """Of `mpi4py.MPI` and a communicator."""
        return MpiLimits(INT_MAX if mpi.Get_version() < (4, 0) else 2**63 - 1, comm.Get_attr(mpi.TAG_UB) or 2**15 - 1)

    def tag_of(self, number: int) -> int:
        """The tag of a rendezvous.

        Raises:
            TransportError: there is none so large.
        """
        if not 0 <= number <= self.tag:
            raise TransportError(f"rendezvous {number} is beyond the largest tag of this MPI, {self.tag}")
        return number

    def check(self, nbytes: int) -> None:
        """Raise EnvironmentLacks where a message cannot have so many bytes."""
        if nbytes > self.nbytes:
            raise EnvironmentLacks(
                f"this MPI library counts up to {self.nbytes} bytes in one message and {nbytes} are needed; "
                "use one of MPI 4 (MPICH 4.1), or split the tensor over more ranks"
            )


class MpiTransport:
    """A `base.Transport`, constructed by all ranks of `comm` together, with the same `lanes`."""

    in_stream_order = False
    takes_device = False
    reduces = False

    def __init__(self, comm: MPI.Intracomm, lanes: Lanes) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.waits_for_calls = MPI.Query_thread() >= MPI.THREAD_SERIALIZED  # and may be called by two threads in turn
        self._comm = comm.Dup()
        self.rank = comm.rank
        self.size = comm.size
        self.bytes_sent = {"exchange": 0, "all_gather": 0, "send": 0}
        self._limits, self._messages = MpiLimits.of(MPI, self._comm), messages_of(MPI)
        self._roomy = comm.Split_type(MPI.COMM_TYPE_SHARED).size <= len(os.sched_getaffinity(0))
        self._made = {lane: self._make(lane) for lane in sorted(set(lanes.values())) if self.rank in lane.group}
        self._lanes = {number: self._made[lane] for number, lane in lanes.items() if lane in self._made}

    @property
    def of_host(self) -> MpiTransport:
        """Itself."""
        return self

    def _make(self, lane: Lane) -> MPI.Intracomm:
        members = self._comm.Get_group().Incl(lane.group)
        return self._comm.Create_group(members, tag=0)

    def open(self, number: int, lane: Lane) -> None:
        """Make the communicator of a lane, its ranks together, and let collectives of this number use it."""
        if number not in self._lanes:
            if lane not in self._made:
                self._made[lane] = self._make(lane)
            self._lanes[number] = self._made[lane]

    def exchange(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        """A personalised all-to-all."""
        request = self._messages.exchange(self._lane(number, group), send, receive)
        sent = handed_over(group, self.rank, send)
        self.bytes_sent["exchange"] += sent
        calls = calls_of(sent + handed_over(group, self.rank, receive))
        return MpiRequest(request, "an exchange of ranks", group, number, calls)

    def all_gather(
        self, group: Group, number: int, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        """Everyone's array to everyone, in place where `send` is this rank's own `receive`."""
        request = self._messages.all_gather(self._lane(number, group), send, receive)
        self.bytes_sent["all_gather"] += 0 if send is None else send.nbytes * (len(group) - 1)
        calls = calls_of(sum(array.nbytes for array in receive if array is not None))
        return MpiRequest(request, "an all-gather of ranks", group, number, calls)

    def all_reduce(
        self, group: Group, number: int, send: HostArray, receive: HostArray, reduce: Reduce
    ) -> PendingTransfer:
        """Terms are combined in rank order by whoever asks."""
        raise InternalError("this transport moves and does not reduce")

    reduce_scatter = all_reduce

    def send(self, target: int, number: int, array: HostArray) -> PendingTransfer:
        """One end of a message by `Issend`: over when it is matched."""
        if target != self.rank:
            self.bytes_sent["send"] += array.nbytes
        request = self._messages.send(self._comm, array, target, self._limits.tag_of(number))
        return MpiRequest(request, "the message to be taken by rank", target, number, calls_of(array.nbytes))

    def receive(self, source: int, number: int, array: HostArray) -> PendingTransfer:
        """The other end, by `Irecv`."""
        request = self._messages.receive(self._comm, array, source, self._limits.tag_of(number))
        return MpiReceipt(request, source, number, array.nbytes, self._mpi.Status(), self._mpi.BYTE)

    def barrier(self) -> None:
        """Wait until every rank is here, giving way meanwhile."""
        request = self._comm.Ibarrier()
        begin_ns = time.perf_counter_ns()
        while not request.Test():
            self.pause(time.perf_counter_ns() - begin_ns)

    def pause(self, idle_ns: int) -> None:
        """Poll on, offer the core to others or nap, by how long nothing has come."""
        if idle_ns >= _AWAKE_NS[self._roomy]:
            time.sleep(min(_LONGEST_NAP_NS, _NAP_SHARE * idle_ns) * 1e-9)
        elif not self._roomy or idle_ns >= _PATIENCE_NS:
            os.sched_yield()

    def wake(self) -> None:
        """Naps are short by themselves."""

    def abort(self) -> None:
        """What is under way ends with the process."""

    def close(self) -> None:
        """Free the communicators, all ranks together, after verifying that no message is left."""
        self.barrier()
        unclaimed = unclaimed_message(self._mpi, self._comm)
        for comm in self._made.values():
            comm.Free()
        self._lanes = {}
        self._comm.Free()
        if unclaimed:
            raise TransportError(f"rank {self.rank} never asked for {unclaimed}")

    def _lane(self, number: int, group: Group) -> MPI.Intracomm:
        comm = self._lanes.get(number)
        if comm is None or comm.size != len(group):
            raise TransportError(f"rank {self.rank} has no lane for rendezvous {number} of ranks {group}")
        return comm


def calls_of(nbytes: int) -> int:
    """How many calls one look at a movement of so many bytes is."""
    return min(_MOST_CALLS, 1 + nbytes // _CALL_NBYTES)


def unclaimed_message(mpi: ModuleType | Any, comm: MPI.Intracomm | Any) -> str:
    """A message that lies here and was not asked for; "" if there is none."""
    status = mpi.Status()
    if not comm.Iprobe(status=status):
        return ""
    return f"{status.count} bytes from rank {status.source} (rendezvous {status.tag})"


@dataclass(frozen=True, slots=True)
class MpiRequest:
    """An MPI request, what to say of it, and the calls that a look at it is."""

    request: MPI.Request
    what: str
    who: Group | int
    number: int
    calls: int = 1

    def test(self) -> bool:
        """Whether it is through."""
        test = self.request.Test
        return test() or any(test() for _ in range(1, self.calls))

    def describe(self) -> str:
        """What is waited for."""
        return f"{self.what} {self.who} (rendezvous {self.number})"


@dataclass(slots=True)
class MpiReceipt:
    """A receive, which also verifies how much came."""

    request: MPI.Request
    source: int
    number: int
    nbytes: int
    status: MPI.Status
    byte: MPI.Datatype
    """Bytes are counted by their datatype: in 64 bits under any library."""
    over: bool = False

    def test(self) -> bool:
        """Whether all has come."""
        test, status = self.request.Test, self.status
        if not self.over and any(test(status) for _ in range(calls_of(self.nbytes))):
            self.over = True
            came = self.status.Get_elements(self.byte)
            if came != self.nbytes:
                raise TransportError(f"{self.describe()}: {came} bytes came, {self.nbytes} were expected")
        return self.over

    def describe(self) -> str:
        """What is waited for."""
        return f"the message from rank {self.source} (rendezvous {self.number})"
