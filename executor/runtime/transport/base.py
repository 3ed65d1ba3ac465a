"""Transport: the one seam between an executor's rank and the world.

Four movements, all non-blocking, on C-contiguous NumPy arrays that stay untouched until the request is through:
the personalised exchange and the all-gather of a group, and the two ends of a point-to-point message. What they
mean (a reduction, a change of layout) is decided above, in `executor.runtime.collectives`.

Every movement carries a *number*, that of its rendezvous in the program. Collectives that meet in one order on all
their ranks share a *lane* (a communicator under MPI), within which that order is relied upon and the number
verified; point-to-point messages are told apart by their number and may overtake one another across numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InternalError, RunError
from strategy.program.program import BoxingTask, Program, TransferTask
from strategy.program.protocol import rendezvous_members, streams_of_actors
from strategy.sbp.sbp import Reduce


class TransportError(RunError):
    """A message was lost, doubled, out of order, of another rendezvous, or too long in coming."""


class PeerError(TransportError):
    """Another rank failed, so this one ends too; `cause` is what the other one raised."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(f"another rank failed: {cause}")


HostArray = npt.NDArray[Any]
Group = tuple[int, ...]


class Parcel(tuple[HostArray | None, ...]):
    """Arrays that are moved together again and again; what a transport works out for them stays and goes with them."""

    worked_out: Any = None


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """A group of ranks, in order, and a label that tells apart the orders in which it meets."""

    group: Group
    label: str = ""


Lanes = Mapping[int, Lane]
"""Rendezvous number -> the lane in which its collectives travel."""


class PendingTransfer(Protocol):
    """One movement under way on this rank."""

    def test(self) -> bool:
        """Whether this rank's part is over; moves it on. Cheap, and True for ever once True.

        Raises:
            TransportError: a message is lost, doubled, out of order or of another rendezvous; or a peer failed.
        """
        ...

    def describe(self) -> str:
        """What is still waited for, for people."""
        ...


class Transport(Protocol):
    """One rank's way to the others. Arrays may differ in length between ranks; None moves nothing.

    Whoever moves the same arrays again and again passes the same `Parcel`; of other sequences nothing is kept.
    """

    bytes_sent: dict[str, int]
    """Bytes handed over to other ranks, per movement: "exchange", "all_gather" and "send"."""

    waits_for_calls: bool
    """Whether a movement goes on only while its `test` is called, and another thread may do that in turn."""

    in_stream_order: bool
    """Whether it moves arrays of a device by what it orders on the current stream; else the host asks and waits.

    Its requests are through as soon as they are made: the stream, and not the host, waits for others. Messages that are
    asked for or sent before the first of their requests is tested go together.
    """

    takes_device: bool
    """Whether it moves arrays of a device; else staged ones, in memory of the host.

    One that is not in stream order waits for the current stream before it moves any, and fills them beside streams.
    """

    reduces: bool
    """Whether it adds up arrays itself, by `all_reduce` and `reduce_scatter`, which others do not have."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def of_host(self) -> Transport:
        """What moves arrays of the host: itself, or, where it moves those of a device, the one that stands beside it.

        Which one an act moves its arrays by is settled when it is bound, on all its ranks alike: a rank may have
        nothing to send or to receive, and still has to take part.
        """
        ...

    def open(self, number: int, lane: Lane) -> None:
        """Let the collectives of this number travel in a lane that was not known when the transport was made.

        All its ranks call it, and those that open several lanes do so in one order. Opening again does nothing.
        """
        ...

    def exchange(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        """Personalised all-to-all: `send[i]` goes to the group's i-th rank, `receive[i]` is filled by it.

        Sends the sum of the bytes for other ranks.
        """
        ...

    def all_gather(
        self, group: Group, number: int, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        """Everyone's `send` arrives in everyone's `receive[i]`; `send` may be `receive[own index]` itself.

        Sends own bytes x (ranks of the group - 1).
        """
        ...

    def all_reduce(
        self, group: Group, number: int, send: HostArray, receive: HostArray, reduce: Reduce
    ) -> PendingTransfer:
        """The terms of all, reduced, to all: the same bits everywhere.

        Raises:
            InternalError: it does not reduce.
        """
        ...

    def reduce_scatter(
        self, group: Group, number: int, send: HostArray, receive: HostArray, reduce: Reduce
    ) -> PendingTransfer:
        """Of the terms of all, the group's i-th rank receives the i-th of as many equal pieces, reduced.

        Raises:
            InternalError: it does not reduce.
        """
        ...

    def send(self, target: int, number: int, array: HostArray) -> PendingTransfer:
        """One end of a message; over only when the target has taken it, which is the credit given back."""
        ...

    def receive(self, source: int, number: int, array: HostArray) -> PendingTransfer:
        """The other end; messages of one number from one source arrive in the order sent."""
        ...

    def barrier(self) -> None:
        """Wait until every rank is here."""
        ...

    def pause(self, idle_ns: int) -> None:
        """Give way, after polls that have found nothing for `idle_ns`; returns soon in any case."""
        ...

    def wake(self) -> None:
        """End a pause of this rank, from another thread of it; what it waits for need not be the transport's."""
        ...

    def abort(self) -> None:
        """Give up what is under way, without others and within seconds; this rank has failed."""
        ...

    def close(self) -> None:
        """End this rank's use of the transport.

        Raises:
            TransportError: a message for this rank was never asked for.
        """
        ...


def wait(request: PendingTransfer, transport: Transport, *, timeout_s: float = 60.0) -> None:
    """Poll a request until it is through.

    Raises:
        TransportError: it is not through after `timeout_s`, or failed.
    """
    begin_ns = time.perf_counter_ns()
    while not request.test():
        idle_ns = time.perf_counter_ns() - begin_ns
        transport.pause(idle_ns)
        if idle_ns > timeout_s * 1e9:
            raise TransportError(f"rank {transport.rank} waited {timeout_s:g} s for {request.describe()}")


def lanes_of(program: Program) -> dict[int, Lane]:
    """The lane of every collective rendezvous of a program.

    Collectives of one group on the same streams meet in one order and share a lane; on other streams they need not
    (admission refuses those in dynamic streams, whose order is each rank's own).
    """
    stream_of = streams_of_actors(program)
    found: dict[int, Lane] = {}
    for number, members in rendezvous_members(program).items():
        first = program.actors[members[0]]
        if isinstance(first.task, TransferTask):
            continue
        met = tuple(program.actors[member].rank for member in members)
        group = first.task.group if isinstance(first.task, BoxingTask) else met
        streams = (program.streams[stream_of[member]] for member in members)
        found[number] = Lane(group, ", ".join(f"{stream.rank}:{stream.name}" for stream in streams))
    return found


def meetings_of(program: Program) -> dict[int, Lane]:
    """The lane of every rendezvous of a program: as `lanes_of`, and of transfers the ranks that meet in them."""
    stream_of, collectives = streams_of_actors(program), lanes_of(program)
    found: dict[int, Lane] = {}
    for number, members in rendezvous_members(program).items():
        group = tuple(program.actors[member].rank for member in members)
        names = {program.streams[stream_of[member]].name for member in members}
        found[number] = collectives.get(number) or Lane(group, f"messages {', '.join(sorted(names))}")
    return found


def handed_over(group: Group, rank: int, send: Sequence[HostArray | None]) -> int:
    """Bytes of a personalised exchange that go to ranks other than `rank`."""
    return sum(array.nbytes for peer, array in zip(group, send, strict=True) if array is not None and peer != rank)


def bytes_of(array: HostArray) -> npt.NDArray[np.uint8]:
    """The memory of a C-contiguous array, whatever its dtype: the buffer protocol knows no bfloat16."""
    return array.reshape(-1).view(np.uint8)


def check_contiguous(arrays: Sequence[HostArray | None]) -> None:
    """Transports move flat memory: packing is their caller's business."""
    if not all(a is None or (isinstance(a, np.ndarray) and a.flags.c_contiguous) for a in arrays):
        raise InternalError("an array that does not lie together in memory: it is to be packed first")
