"""The collective library of strict devices: calls are ordered on streams, and ranks meet there, not on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executor.runtime.transport.base import Group, Lane, Transport
from strategy.sbp.sbp import Reduce
from tests.support.strict_device.arrays import DeviceArray
from tests.support.strict_device.device import StrictDevice
from tests.support.strict_device.order import OrderFault
from tests.support.strict_device.world import Job, Meeting, Moved, World


class _Ordered:
    """A request that is through as soon as it is on the stream, which it is when it is tested."""

    def __init__(self, transport: StrictTransport) -> None:
        self._transport = transport

    def test(self) -> bool:
        self._transport.flush()
        return True

    def describe(self) -> str:
        return "a stream"


class StrictTransport:
    """See `executor.runtime.transport.base.Transport`.

    `groups` are the members of every rendezvous; `of_host` moves what the hosts move themselves.
    """

    in_stream_order = True
    takes_device = True
    reduces = True

    def __init__(self, world: World, device: StrictDevice, groups: dict[int, Group], of_host: Transport) -> None:
        self._world, self._device, self._groups, self.of_host = world, device, groups, of_host
        self.rank, self.size = device.rank, world.ranks
        self.bytes_sent = of_host.bytes_sent
        self._pending: tuple[int, list[Moved], list[Moved]] | None = None

    def open(self, number: int, lane: Lane) -> None:
        """All are open."""

    def exchange(
        self, group: Group, number: int, send: Sequence[DeviceArray | None], receive: Sequence[DeviceArray | None]
    ) -> _Ordered:
        """Sends and receives of all peers in one call."""
        self._count("exchange", group, send)
        self._call(group, number, "exchange", _there(group, send), _there(group, receive))
        return _Ordered(self)

    def all_gather(
        self, group: Group, number: int, send: DeviceArray | None, receive: Sequence[DeviceArray | None]
    ) -> _Ordered:
        """One array to all, as one call."""
        self._count("all_gather", group, [send] * len(group))
        self._call(group, number, "all_gather", _there(group, [send] * len(group)), _there(group, receive))
        return _Ordered(self)

    def all_reduce(
        self, group: Group, number: int, send: DeviceArray, receive: DeviceArray, reduce: Reduce
    ) -> _Ordered:
        """One call, of which all ranks say how much of what is reduced how."""
        self.bytes_sent["exchange"] += 2 * send.nbytes * (len(group) - 1) // len(group)
        kind = f"all_reduce {reduce} of {send.size} {send.dtype}"
        self._call(group, number, kind, [(self.rank, send)], [(self.rank, receive)], reduce)
        return _Ordered(self)

    def reduce_scatter(
        self, group: Group, number: int, send: DeviceArray, receive: DeviceArray, reduce: Reduce
    ) -> _Ordered:
        """One call; pieces are equal."""
        self.bytes_sent["exchange"] += send.nbytes - receive.nbytes
        kind = f"reduce_scatter {reduce} of {receive.size} {receive.dtype}"
        self._call(group, number, kind, [(self.rank, send)], [(self.rank, receive)], reduce)
        return _Ordered(self)

    def send(self, target: int, number: int, array: DeviceArray) -> _Ordered:
        """One end of a message; goes with others."""
        self.bytes_sent["send"] += array.nbytes if target != self.rank else 0
        self._add(number)[1].append((target, array))
        return _Ordered(self)

    def receive(self, source: int, number: int, array: DeviceArray) -> _Ordered:
        """The other end; comes with others."""
        self._add(number)[2].append((source, array))
        return _Ordered(self)

    def flush(self) -> None:
        """Call for the messages that have been asked for."""
        if self._pending is not None:
            (number, sends, receives), self._pending = self._pending, None
            self._call(self._groups[number], number, "messages", sends, receives)

    def barrier(self) -> None:
        """Ranks end one after the other."""

    def pause(self, idle_ns: int) -> None:
        """Let other ranks, and devices, go on."""
        self._device.look_for_host_writes()
        self._world.hand_over(self.rank)

    def wake(self) -> None:
        """A rank that pauses waits for its turn alone."""

    def abort(self) -> None:
        """The world ends all ranks."""

    def close(self) -> None:
        """Nothing is left over: a call that waits keeps its stream from ending."""

    def _add(self, number: int) -> tuple[int, list[Moved], list[Moved]]:
        if self._pending is not None and self._pending[0] != number:
            raise OrderFault(f"messages of {self._pending[0]} and {number} are mixed")
        self._pending = self._pending or (number, [], [])
        return self._pending

    def _count(self, kind: str, group: Group, send: Sequence[DeviceArray | None]) -> None:
        pairs = zip(group, send, strict=True)
        self.bytes_sent[kind] += sum(a.nbytes for peer, a in pairs if a is not None and peer != self.rank)

    def _call(
        self,
        group: Group,
        number: int,
        kind: str,
        sends: Sequence[Moved],
        receives: Sequence[Moved],
        reduce: Reduce | None = None,
    ) -> None:
        device, world = self._device, self._world
        read, written = [array for _, array in sends], [array for _, array in receives]
        if any(isinstance(array, np.ndarray) for array in (*read, *written)):
            raise OrderFault(f"{kind} of rendezvous {number}: an array of NumPy in the plan of a device")
        device.compute(lambda: None, read, written, kind)
        meeting = world.call(self.rank, number, group, kind)
        order = group if world.in_rank_order else world.rng.sample(group, len(group))
        job = Job(lambda: _meet(meeting) if reduce is None else _reduce(meeting, reduce, order), meeting.complete)
        meeting.parts[self.rank] = list(sends), list(receives)
        meeting.waiting[self.rank] = device.meet(job), job


def _meet(meeting: Meeting) -> None:
    """The first that finds all there moves everything; the others have nothing left to do.

    Between two ranks arrays go in the order in which both name them.
    """
    payloads = {
        (rank, peer): [array.inside.copy() for other, array in sends if other == peer]
        for rank, (sends, _) in meeting.parts.items()
        for peer in dict.fromkeys(peer for peer, _ in sends)
    }
    for rank, (_, receives) in meeting.parts.items():
        for source, array in receives:
            payload = payloads[source, rank].pop(0)
            array.inside.reshape(-1).view(np.uint8)[:] = payload.reshape(-1).view(np.uint8)
    left = [pair for pair, some in payloads.items() if some]
    if left:
        raise OrderFault(f"rendezvous {meeting.number}: sent and never received, {left}")
    _end(meeting)


_REDUCE = {Reduce.SUM: np.add, Reduce.MIN: np.minimum, Reduce.MAX: np.maximum}


def _reduce(meeting: Meeting, reduce: Reduce, order: Sequence[int]) -> None:
    """All terms in some order, which is not that of ranks; whole to each, or the piece at its place in the group."""
    terms = [meeting.parts[rank][0][0][1].inside.reshape(-1).copy() for rank in order]
    total = terms[0]
    for term in terms[1:]:
        _REDUCE[reduce](total, term, out=total)
    for rank, (_, [(_, target)]) in meeting.parts.items():
        size, at = target.size, meeting.group.index(rank)
        piece = total if size == total.size else total[at * size : (at + 1) * size]
        target.inside.reshape(-1)[:] = piece
    _end(meeting)


def _end(meeting: Meeting) -> None:
    for _, job in meeting.waiting.values():
        job.may_run, job.run = None, _nothing


def _nothing() -> None:
    """It is done."""


def _there(group: Group, arrays: Sequence[DeviceArray | None]) -> list[Moved]:
    return [(peer, array) for peer, array in zip(group, arrays, strict=True) if array is not None and array.size]
