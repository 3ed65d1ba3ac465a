"""Negotiation: bits of all ranks are combined on every rank, by recursive doubling and without a root.

In the i-th of ceil(log2 N) stages a rank hears from the one 2^i before it and tells the one 2^i after it all that it
knows (Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988). Some bits go around twice where N
is no power of two; what is combined here, by `and` and `or`, does not mind. So every rank sends and receives
ceil(log2 N) messages each in a round, where a root would handle 2(N - 1).

A round costs nothing until somebody begins one: receives of the next round lie ready, and the first message that comes
takes its rank into the round.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from executor.runtime.transport.base import HostArray, PendingTransfer, Transport

_DIGEST_BYTES = 8


class Asking(IntFlag):
    """What any rank may ask of all.

    `URGENT`: somebody waits, so send what is listed. `CENSUS`: tell who has what. `GIVE_UP`: somebody has waited too
    long. `UNKNOWN`: somebody announces what has no number yet. `RETUNE`: look for the best fusion size anew.
    """

    URGENT = 1
    CENSUS = 2
    GIVE_UP = 4
    UNKNOWN = 8
    RETUNE = 16


@dataclass(frozen=True, slots=True)
class ReadyBits:
    """What one rank says in a round, or what some say together. Sets are whole numbers, a bit per member.

    Attributes:
        asking: what any of them asks.
        joined: ranks that have no more data.
        leaving: ranks that shut down.
        registering: ranks that are in `register`.
        everywhere: tensors that all of them have (or that have joined).
        somewhere: tensors that one of them has.
        non_finite: tensors that are not finite on one of them.
        same: the digest of all lists so far, where all agree with `seen`.
        seen: likewise; `same` is the `and` of all digests and `seen` the `or`, so both are equal just if all are.
    """

    asking: Asking
    joined: int
    leaving: int
    registering: int
    everywhere: int
    somewhere: int
    non_finite: int
    same: int
    seen: int

    def together(self, other: ReadyBits) -> ReadyBits:
        """What both say together."""
        return ReadyBits(
            self.asking | other.asking,
            self.joined | other.joined,
            self.leaving | other.leaving,
            self.registering | other.registering,
            self.everywhere & other.everywhere,
            self.somewhere | other.somewhere,
            self.non_finite | other.non_finite,
            self.same & other.same,
            self.seen | other.seen,
        )

    def to_array(self, num_ranks: int, num_tensors: int) -> HostArray:
        """The message: bytes, as many as `message_nbytes` says."""
        ranks, tensors = -(-num_ranks // 8), -(-num_tensors // 8)
        raw = int(self.asking).to_bytes(1, "little")
        raw += b"".join(bits.to_bytes(ranks, "little") for bits in (self.joined, self.leaving, self.registering))
        sets = (self.everywhere, self.somewhere, self.non_finite)
        raw += b"".join(bits.to_bytes(tensors, "little") for bits in sets)
        raw += b"".join(digest.to_bytes(_DIGEST_BYTES, "little") for digest in (self.same, self.seen))
        return np.frombuffer(raw, np.uint8)

    @staticmethod
    def from_array(message: HostArray, num_ranks: int, num_tensors: int) -> ReadyBits:
        """What a message says."""
        raw = message.tobytes()
        ranks, tensors = -(-num_ranks // 8), -(-num_tensors // 8)
        found, begin = [], 1
        for nbytes in (*(ranks,) * 3, *(tensors,) * 3, *(_DIGEST_BYTES,) * 2):
            found.append(int.from_bytes(raw[begin : begin + nbytes], "little"))
            begin += nbytes
        return ReadyBits(Asking(raw[0]), *found)


def message_nbytes(num_ranks: int, num_tensors: int) -> int:
    """Bytes of one message."""
    return 1 + 3 * -(-num_ranks // 8) + 3 * -(-num_tensors // 8) + 2 * _DIGEST_BYTES


class RecursiveDoubling:
    """One rank's part of all rounds.

    Args:
        transport: of this rank.
        number: of the first stage's messages; the others follow.
    """

    def __init__(self, transport: Transport, number: int) -> None:
        self.rounds = 0
        self.messages = 0
        self._transport = transport
        self._number = number
        self._distances = [2**stage for stage in range((transport.size - 1).bit_length())]
        self._num_tensors = 0
        self._heard: list[HostArray] = []
        self._receives: list[PendingTransfer] = []

    def listen(self, num_tensors: int) -> None:
        """Lay the receives of the next round ready, in which so many tensors have bits."""
        rank, size = self._transport.rank, self._transport.size
        self._num_tensors = num_tensors
        self._heard = [np.empty(message_nbytes(size, num_tensors), np.uint8) for _ in self._distances]
        self._receives = [
            self._transport.receive((rank - distance) % size, self._number + stage, heard)
            for stage, (distance, heard) in enumerate(zip(self._distances, self._heard, strict=True))
        ]

    def has_begun(self) -> bool:
        """Whether another rank has begun the next round."""
        return any(request.test() for request in self._receives)

    def combine(self, mine: ReadyBits) -> Generator[PendingTransfer, None, ReadyBits]:
        """One round: what all ranks say together, when all that is yielded is through."""
        rank, size = self._transport.rank, self._transport.size
        known = mine
        sends = []
        for stage, distance in enumerate(self._distances):
            message = known.to_array(size, self._num_tensors)
            sends.append(self._transport.send((rank + distance) % size, self._number + stage, message))
            self.messages += 2
            yield self._receives[stage]
            known = known.together(ReadyBits.from_array(self._heard[stage], size, self._num_tensors))
        yield from sends
        self.rounds += 1
        return known


def ranks_in(bits: int) -> list[int]:
    """The members of a set of ranks."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def all_of(count: int) -> int:
    """The set of so many."""
    return (1 << count) - 1
