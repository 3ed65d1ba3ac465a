"""Loopback: all ranks are threads of one process and share mailboxes. Tests and `--launch` without MPI use it.

Messages are copied when sent, so that ranks share no memory, and carry (number, sequence); whatever is lost,
doubled, out of order or of another rendezvous is a named error at the rank that asks for it. `tamper` is where
tests put such faults in. When a rank fails it poisons the hub, and every other rank ends with `PeerError`.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from executor.transport.base import (
    Group,
    HostArray,
    Lane,
    Lanes,
    PeerError,
    Request,
    TransportError,
    bytes_of,
    check_contiguous,
    handed_over,
)

_LONGEST_PAUSE_S = 0.05
"""A pause ends with the next event; this bounds it, so that a worker's own deadline is looked at."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a message lies: collectives by lane, point-to-point messages by number."""

    source: int
    target: int
    lane: str


@dataclass(slots=True)
class Message:
    """A copy of what was sent. `sequence` counts the messages of its channel."""

    channel: Channel
    number: int
    sequence: int
    payload: bytes
    taken: bool = False

    def __str__(self) -> str:
        where = f"rendezvous {self.number}, {self.channel.lane}"
        return f"message {self.sequence} from rank {self.channel.source} ({where}, {len(self.payload)} bytes)"


@dataclass(slots=True)
class Receipt:
    """A message that is asked for, and the array that it fills."""

    channel: Channel
    number: int
    sequence: int
    array: HostArray
    done: bool = False
    fault: TransportError | None = None

    def fill(self, message: Message) -> None:
        """Take what the mailbox held next, if it is what was asked for; otherwise keep the fault for its asker."""
        if message.sequence < self.sequence:
            self.fault = self._refusal("found a duplicate", message)
        elif message.sequence > self.sequence:
            self.fault = self._refusal("it is lost or out of order: found", message)
        elif message.number != self.number:
            self.fault = self._refusal("found another rendezvous", message)
        elif len(message.payload) != self.array.nbytes:
            self.fault = self._refusal(f"expected {self.array.nbytes} bytes and found", message)
        else:
            bytes_of(self.array)[:] = np.frombuffer(message.payload, np.uint8)
            self.done = True
            message.taken = True

    def _refusal(self, what: str, found: Message) -> TransportError:
        return TransportError(f"rank {self.channel.target} asked for {self}; {what}: {found}")

    def __str__(self) -> str:
        where = f"rendezvous {self.number}, {self.channel.lane}"
        return f"message {self.sequence} from rank {self.channel.source} ({where})"


Tamper = Callable[[Message], Iterable[Message]]
"""What becomes of a message on its way: `[]` loses it, twice the same doubles it."""


def faithfully(message: Message) -> Iterable[Message]:
    """Nothing becomes of it."""
    return (message,)


class LoopbackHub:
    """The mailboxes that the transports of all ranks share."""

    def __init__(self, size: int, lanes: Lanes | None = None, *, tamper: Tamper = faithfully) -> None:
        self.size = size
        self.lanes = lanes or {}
        self._lock = threading.RLock()
        self.changed = [threading.Condition(self._lock) for _ in range(size)]
        self.events = [0] * size
        self.failure: BaseException | None = None
        self._mail: defaultdict[Channel, deque[Message]] = defaultdict(deque)
        self._asked: defaultdict[Channel, deque[Receipt]] = defaultdict(deque)
        self._tamper = tamper
        self._arrived = 0
        self._barriers = 0

    def transport(self, rank: int) -> LoopbackTransport:
        """The transport of one rank."""
        return LoopbackTransport(self, rank)

    def deliver(self, message: Message) -> None:
        """Put a message in its mailbox."""
        with self._lock:
            for found in self._tamper(message):
                self._mail[found.channel].append(found)
                self._match(found.channel)

    def ask(self, receipt: Receipt) -> None:
        """Queue a receipt; it is filled in the order of asking, by the messages in the order of their arrival."""
        with self._lock:
            self._asked[receipt.channel].append(receipt)
            self._match(receipt.channel)

    def _match(self, channel: Channel) -> None:
        """Fill receipts, and tell both ends; that a message lies there, or is waited for, is no news to anyone."""
        mail, asked = self._mail[channel], self._asked[channel]
        while mail and asked:
            asked.popleft().fill(mail.popleft())
            self._notify(channel.target)
            self._notify(channel.source)

    def unclaimed(self, rank: int) -> list[Message]:
        """Messages for `rank` that it has not asked for."""
        with self._lock:
            return [message for mail in self._mail.values() for message in mail if message.channel.target == rank]

    def _notify(self, rank: int) -> None:
        self.events[rank] += 1
        self.changed[rank].notify_all()

    def poison(self, failure: BaseException) -> None:
        """End all ranks: the first failure is the one that they name."""
        with self._lock:
            self.failure = self.failure or failure
            for rank in range(self.size):
                self._notify(rank)

    def check_alive(self) -> None:
        """Raise PeerError once a rank has failed."""
        if self.failure is not None:
            raise PeerError(self.failure)

    def barrier(self, rank: int) -> None:
        """Wait for all ranks."""
        with self._lock:
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
    """See `executor.transport.base.Transport`."""

    def __init__(self, hub: LoopbackHub, rank: int) -> None:
        self._hub = hub
        self.rank = rank
        self.size = hub.size
        self._lanes = dict(hub.lanes)
        self.bytes_sent = {"exchange": 0, "all_gather": 0, "send": 0}
        self._seen: Counter[int] = Counter()
        self._sent: Counter[Channel] = Counter()
        self._asked: Counter[Channel] = Counter()

    def open(self, number: int, lane: Lane) -> None:
        """Let collectives of this number travel in a lane."""
        self._lanes.setdefault(number, lane)

    def exchange(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> Request:
        """Personalised all-to-all."""
        check_contiguous(send)
        self.bytes_sent["exchange"] += handed_over(group, self.rank, send)
        return self._collective(group, number, send, receive)

    def all_gather(
        self, group: Group, number: int, send: HostArray | None, receive: Sequence[HostArray | None]
    ) -> Request:
        """Everyone's array to everyone."""
        check_contiguous([send])
        outgoing = [send] * len(group)
        self.bytes_sent["all_gather"] += handed_over(group, self.rank, outgoing)
        return self._collective(group, number, outgoing, receive)

    def _collective(
        self, group: Group, number: int, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]
    ) -> Request:
        check_contiguous(receive)
        self._hub.check_alive()
        label = self._lanes[number].label if number in self._lanes else ""
        lane = f"collectives of {group} ({label})"
        for peer, array in zip(group, send, strict=True):
            if array is not None and array.size:
                self._post(Channel(self.rank, peer, lane), number, array)
        asked = [
            self._ask(Channel(peer, self.rank, lane), number, array)
            for peer, array in zip(group, receive, strict=True)
            if array is not None and array.size
        ]
        return _Receipts(self._hub, asked)

    def send(self, target: int, number: int, array: HostArray) -> Request:
        """One end of a message."""
        check_contiguous([array])
        self._hub.check_alive()
        if target != self.rank:
            self.bytes_sent["send"] += array.nbytes
        return _Sent(self._hub, self._post(Channel(self.rank, target, f"messages of {number}"), number, array))

    def receive(self, source: int, number: int, array: HostArray) -> Request:
        """The other end."""
        check_contiguous([array])
        self._hub.check_alive()
        channel = Channel(source, self.rank, f"messages of {number}")
        return _Receipts(self._hub, [self._ask(channel, number, array)])

    def _post(self, channel: Channel, number: int, array: HostArray) -> Message:
        message = Message(channel, number, self._sent[channel], array.tobytes())
        self._sent[channel] += 1
        self._hub.deliver(message)
        return message

    def _ask(self, channel: Channel, number: int, array: HostArray) -> Receipt:
        receipt = Receipt(channel, number, self._asked[channel], array)
        self._asked[channel] += 1
        self._hub.ask(receipt)
        return receipt

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._hub.barrier(self.rank)

    def pause(self) -> None:
        """Sleep until something has happened to this rank since the last pause of this thread."""
        thread, events, changed = threading.get_ident(), self._hub.events, self._hub.changed[self.rank]
        with changed:
            changed.wait_for(lambda: events[self.rank] != self._seen[thread], _LONGEST_PAUSE_S)
            self._seen[thread] = events[self.rank]

    def close(self) -> None:
        """Raise TransportError if messages for this rank were never asked for."""
        unclaimed = self._hub.unclaimed(self.rank)
        if unclaimed:
            raise TransportError(f"rank {self.rank} never asked for {'; '.join(map(str, unclaimed))}")


class _Receipts:
    """Through when every message asked for has come."""

    def __init__(self, hub: LoopbackHub, receipts: list[Receipt]) -> None:
        self._hub = hub
        self._waiting = receipts

    def test(self) -> bool:
        for receipt in self._waiting:
            if receipt.fault is not None:
                raise receipt.fault
        self._waiting = [receipt for receipt in self._waiting if not receipt.done]
        if self._waiting:
            self._hub.check_alive()
        return not self._waiting

    def describe(self) -> str:
        return "; ".join(map(str, self._waiting))


class _Sent:
    """Through when the target has taken the message."""

    def __init__(self, hub: LoopbackHub, message: Message) -> None:
        self._hub = hub
        self._message = message

    def test(self) -> bool:
        taken = self._message.taken
        if not taken:
            self._hub.check_alive()
        return taken

    def describe(self) -> str:
        return f"rank {self._message.channel.target} to take {self._message}"
