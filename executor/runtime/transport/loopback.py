"""Loopback: all ranks are threads of one process and share mailboxes. Tests and `--launch` without MPI use it.

Messages are copied when sent, so that ranks share no memory, and carry (number, sequence); whatever is lost,
doubled, out of order or of another rendezvous is a named error at the rank that asks for it. `tamper` is where
tests put such faults in. When a rank fails it poisons the hub, and every other rank ends with `PeerError`.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from executor.runtime.transport.base import (
    Group,
    HostArray,
    Lane,
    Lanes,
    PeerError,
    PendingTransfer,
    TransportError,
    bytes_of,
    check_contiguous,
    handed_over,
)
from strategy.base.errors import InternalError
from strategy.sbp.sbp import Reduce

_LONGEST_PAUSE_S = 0.05
"""A pause ends with the next event; this bounds it, so that a worker's own deadline is looked at."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a message lies: collectives by lane, point-to-point messages by number."""

    source: int
    target: int
    lane: str


@dataclass(slots=True)
class SentMessage:
    """A copy of what was sent. `sequence` counts the messages of its channel.

    `acknowledged` if its sender waits until it is taken.
    """

    channel: Channel
    number: int
    sequence: int
    payload: bytes
    acknowledged: bool = False
    taken: bool = False

    def __str__(self) -> str:
        where = f"rendezvous {self.number}, {self.channel.lane}"
        return f"message {self.sequence} from rank {self.channel.source} ({where}, {len(self.payload)} bytes)"


@dataclass(slots=True)
class Receipt:
    """A message that is asked for, with others or alone, and the array that it fills."""

    channel: Channel
    number: int
    sequence: int
    array: HostArray
    asked: Receipts
    done: bool = False

    def fill(self, message: SentMessage) -> None:
        """Take what the mailbox held next, if it is what was asked for; otherwise keep the fault for its asker."""
        if message.sequence < self.sequence:
            self._refuse("found a duplicate", message)
        elif message.sequence > self.sequence:
            self._refuse("it is lost or out of order: found", message)
        elif message.number != self.number:
            self._refuse("found another rendezvous", message)
        elif len(message.payload) != self.array.nbytes:
            self._refuse(f"expected {self.array.nbytes} bytes and found", message)
        else:
            bytes_of(self.array)[:] = np.frombuffer(message.payload, np.uint8)
            self.done = message.taken = True
            self.asked.left -= 1

    def _refuse(self, what: str, found: SentMessage) -> None:
        problem = f"rank {self.channel.target} asked for {self}; {what}: {found}"
        self.asked.fault = self.asked.fault or TransportError(problem)

    def __str__(self) -> str:
        where = f"rendezvous {self.number}, {self.channel.lane}"
        return f"message {self.sequence} from rank {self.channel.source} ({where})"


@dataclass(slots=True)
class Receipts:
    """What one movement asks for: `left` receipts are still empty."""

    hub: LoopbackHub
    receipts: list[Receipt] = field(default_factory=list)
    left: int = 0
    fault: TransportError | None = None

    def test(self) -> bool:
        """Whether every message asked for has come."""
        if self.fault is not None:
            raise self.fault
        if self.left:
            self.hub.check_alive()
        return not self.left

    def describe(self) -> str:
        """The messages that have not."""
        return "; ".join(str(receipt) for receipt in self.receipts if not receipt.done)


@dataclass(slots=True)
class Mailbox:
    """What lies in a channel and what is asked for there, and how many messages and receipts there have been."""

    channel: Channel
    mail: deque[SentMessage] = field(default_factory=deque)
    receipts: deque[Receipt] = field(default_factory=deque)
    sent: int = 0
    asked: int = 0


Tamper = Callable[[SentMessage], Iterable[SentMessage]]
"""What becomes of a message on its way: `[]` loses it, twice the same doubles it."""


def faithfully(message: SentMessage) -> Iterable[SentMessage]:
    """Nothing becomes of it."""
    return (message,)


class LoopbackHub:
    """The mailboxes that the transports of all ranks share."""

    def __init__(self, size: int, lanes: Lanes | None = None, *, tamper: Tamper = faithfully) -> None:
        self.size = size
        self.lanes = lanes or {}
        self.lock = threading.RLock()
        self.changed = [threading.Condition(self.lock) for _ in range(size)]
        self.events = [0] * size
        self.failure: BaseException | None = None
        self._mailboxes: dict[Channel, Mailbox] = {}
        self._tamper = tamper
        self._given: set[int] = set()
        self._arrived = 0
        self._barriers = 0

    def transport(self, rank: int) -> LoopbackTransport:
        """The transport of one rank.

        Raises:
            TransportError: it has been given before.
        """
        with self.lock:
            if rank in self._given:
                raise TransportError(
                    f"rank {rank} has its transport of this hub already: two would take each other's messages; "
                    "make a hub for each set of transports"
                )
            self._given.add(rank)
        return LoopbackTransport(self, rank)

    def mailbox(self, channel: Channel) -> Mailbox:
        """The mailbox of a channel."""
        with self.lock:
            found = self._mailboxes.get(channel)
            if found is None:
                found = self._mailboxes[channel] = Mailbox(channel)
            return found

    def post(self, box: Mailbox, number: int, array: HostArray, *, acknowledged: bool = False) -> SentMessage:
        """Put a message in a mailbox."""
        with self.lock:
            message = SentMessage(box.channel, number, box.sent, array.tobytes(), acknowledged)
            box.sent += 1
            for found in self._tamper(message):
                there = box if found.channel is box.channel else self.mailbox(found.channel)
                there.mail.append(found)
                self._match(there)
        return message

    def ask(self, box: Mailbox, number: int, array: HostArray, asked: Receipts) -> None:
        """Queue a receipt; it is filled in the order of asking, by the messages in the order of their arrival."""
        with self.lock:
            receipt = Receipt(box.channel, number, box.asked, array, asked)
            box.asked += 1
            asked.receipts.append(receipt)
            asked.left += 1
            box.receipts.append(receipt)
            self._match(box)

    def _match(self, box: Mailbox) -> None:
        """Fill receipts, and tell who waits for that; that a message lies there, or is waited for, is no news."""
        while box.mail and box.receipts:
            receipt, message = box.receipts.popleft(), box.mail.popleft()
            receipt.fill(message)
            if not receipt.asked.left or receipt.asked.fault is not None:
                self._notify(box.channel.target)
            if message.acknowledged:
                self._notify(box.channel.source)

    def unclaimed(self, rank: int) -> list[SentMessage]:
        """Messages for `rank` that it has not asked for."""
        with self.lock:
            return [m for box in self._mailboxes.values() for m in box.mail if m.channel.target == rank]

    def wake(self, rank: int) -> None:
        """Something has happened to a rank, if not by a message."""
        with self.lock:
            self._notify(rank)

    def _notify(self, rank: int) -> None:
        self.events[rank] += 1
        self.changed[rank].notify_all()

    def poison(self, failure: BaseException) -> None:
        """End all ranks: the first failure is the one that they name."""
        with self.lock:
            self.failure = self.failure or failure
            for rank in range(self.size):
                self._notify(rank)

    def check_alive(self) -> None:
        """Raise PeerError once a rank has failed."""
        if self.failure is not None:
            raise PeerError(self.failure)

    def barrier(self, rank: int) -> None:
        """Wait for all ranks."""
        with self.lock:
            mine = self._barriers
            self._arrived += 1
            if self._arrived == self.size:
                self._arrived = 0
                self._barriers += 1
                for other in range(self.size):
                    self._notify(other)
            self.changed[rank].wait_for(lambda: self._barriers > mine or self.failure is not None)
            if self._barriers == mine:
                self.check_alive()


class LoopbackTransport:
    """See `executor.runtime.transport.base.Transport`."""

    waits_for_calls = False
    in_stream_order = False
    takes_device = False
    reduces = False

    def __init__(self, hub: LoopbackHub, rank: int) -> None:
        self._hub = hub
        self.rank = rank
        self.size = hub.size
        self._lanes = dict(hub.lanes)
        self.bytes_sent = {"exchange": 0, "all_gather": 0, "send": 0}
        self._seen: Counter[int] = Counter()
        self._ways: dict[tuple[Group, int], list[tuple[Mailbox, Mailbox]]] = {}

    @property
    def of_host(self) -> LoopbackTransport:
        """Itself."""
        return self

    def open(self, number: int, lane: Lane) -> None:
        """Let collectives of this number travel in a lane."""
        self._lanes.setdefault(number, lane)

    def exchange(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        """Personalised all-to-all."""
        check_contiguous(send)
        self.bytes_sent["exchange"] += handed_over(group, self.rank, send)
        return self._collective(group, number, send, receive)

    def all_gather(
        self, group: Group, number: int, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        """Everyone's array to everyone."""
        check_contiguous([send])
        outgoing = [send] * len(group)
        self.bytes_sent["all_gather"] += handed_over(group, self.rank, outgoing)
        return self._collective(group, number, outgoing, receive)

    def _collective(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> PendingTransfer:
        check_contiguous(receive)
        self._hub.check_alive()
        ways = self._ways.get((group, number))
        if ways is None:
            ways = self._ways[group, number] = self._open(group, number)
        asked = Receipts(self._hub)
        with self._hub.lock:
            for (outgoing, _), array in zip(ways, send, strict=True):
                if array is not None and array.size:
                    self._hub.post(outgoing, number, array)
            for (_, incoming), array in zip(ways, receive, strict=True):
                if array is not None and array.size:
                    self._hub.ask(incoming, number, array, asked)
        return asked

    def _open(self, group: Group, number: int) -> list[tuple[Mailbox, Mailbox]]:
        """By rank of a group: the mailboxes of its lane to it and from it."""
        label = self._lanes[number].label if number in self._lanes else ""
        lane = f"collectives of {group} ({label})"
        both = (((self.rank, peer), (peer, self.rank)) for peer in group)
        return [(self._hub.mailbox(Channel(*to, lane)), self._hub.mailbox(Channel(*back, lane))) for to, back in both]

    def all_reduce(
        self, group: Group, number: int, send: HostArray, receive: HostArray, reduce: Reduce
    ) -> PendingTransfer:
        """Terms are combined in rank order by whoever asks."""
        raise InternalError("this transport moves and does not reduce")

    reduce_scatter = all_reduce

    def send(self, target: int, number: int, array: HostArray) -> PendingTransfer:
        """One end of a message."""
        check_contiguous([array])
        self._hub.check_alive()
        if target != self.rank:
            self.bytes_sent["send"] += array.nbytes
        box = self._hub.mailbox(Channel(self.rank, target, f"messages of {number}"))
        return _Sent(self._hub, self._hub.post(box, number, array, acknowledged=True))

    def receive(self, source: int, number: int, array: HostArray) -> PendingTransfer:
        """The other end."""
        check_contiguous([array])
        self._hub.check_alive()
        asked = Receipts(self._hub)
        box = self._hub.mailbox(Channel(source, self.rank, f"messages of {number}"))
        self._hub.ask(box, number, array, asked)
        return asked

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._hub.barrier(self.rank)

    def pause(self, idle_ns: int) -> None:
        """Sleep until something has happened to this rank since the last pause of this thread."""
        thread, events, changed = threading.get_ident(), self._hub.events, self._hub.changed[self.rank]
        with changed:
            changed.wait_for(lambda: events[self.rank] != self._seen[thread], _LONGEST_PAUSE_S)
            self._seen[thread] = events[self.rank]

    def wake(self) -> None:
        """End a pause of this rank."""
        self._hub.wake(self.rank)

    def abort(self) -> None:
        """What is under way ends with the process."""

    def close(self) -> None:
        """Raise TransportError if messages for this rank were never asked for."""
        unclaimed = self._hub.unclaimed(self.rank)
        if unclaimed:
            raise TransportError(f"rank {self.rank} never asked for {'; '.join(map(str, unclaimed))}")


class _Sent:
    """Through when the target has taken the message."""

    def __init__(self, hub: LoopbackHub, message: SentMessage) -> None:
        self._hub = hub
        self._message = message

    def test(self) -> bool:
        taken = self._message.taken
        if not taken:
            self._hub.check_alive()
        return taken

    def describe(self) -> str:
        return f"rank {self._message.channel.target} to take {self._message}"
