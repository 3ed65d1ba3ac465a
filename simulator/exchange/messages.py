"""Messages spelt out: patterns of rounds in which every rank sends to one other, over per-rank clocks.

A rank's host sends and takes one message at a time, and its link carries one after another. In a round messages leave
as soon as their senders are free, and a rank goes on when it has taken what was sent to it. Arrays over ranks, one step
per round: 4,096 ranks in a ring are 8,190 rounds, not 33 million events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.exchange.fabric import Fabric
from strategy.base.errors import InternalError
from strategy.base.units import to_ns

Ranks = npt.NDArray[np.intp]
Times = npt.NDArray[np.int64]
Round = tuple[Ranks, Ranks]
"""Senders and, at the same places, receivers; nobody twice on a side."""


@dataclass(slots=True)
class MessageClocks:
    """Clocks of all ranks, and what each has sent and received so far."""

    fabric: Fabric
    clock_ns: Times
    link_free_ns: Times
    sent: npt.NDArray[np.int64]
    received: npt.NDArray[np.int64]
    sent_bytes: npt.NDArray[np.int64]
    received_bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, fabric: Fabric) -> MessageClocks:
        """All clocks at 0, nothing sent."""
        return cls(fabric, *(np.zeros(fabric.ranks, np.int64) for _ in range(6)))

    @property
    def handled(self) -> npt.NDArray[np.int64]:
        """Messages that each rank sent or received."""
        return np.asarray(self.sent + self.received, np.int64)

    def round(self, senders: Ranks, receivers: Ranks, nbytes: int, handle_ns: int) -> None:
        """One message per sender, each handled at both ends."""
        self.clock_ns[senders] += handle_ns
        there_ns = self._arrivals_ns(senders, receivers, nbytes)
        self.clock_ns[receivers] = np.maximum(self.clock_ns[receivers], there_ns) + handle_ns
        self._count(senders, receivers, nbytes)

    def gather(self, nbytes: int, handle_ns: int, entry_ns: int) -> None:
        """Every rank sends to rank 0, which takes the messages one by one, in the order of their arrival."""
        others = np.arange(1, self.fabric.ranks)
        root = np.zeros_like(others)
        self.clock_ns[others] += handle_ns
        take_ns = handle_ns + entry_ns + round(nbytes / self._rate(near=False) * 1e9)
        for there_ns in np.sort(self._arrivals_ns(others, root, nbytes)).tolist():
            self.clock_ns[0] = max(int(self.clock_ns[0]), there_ns) + take_ns
        self._count(others, root, nbytes)

    def scatter(self, nbytes: int, handle_ns: int) -> None:
        """Rank 0 sends to every other, one message after another."""
        others = np.arange(1, self.fabric.ranks)
        root = np.zeros_like(others)
        give_ns = handle_ns + round(nbytes / self._rate(near=False) * 1e9)
        there_ns = self.clock_ns[0] + give_ns * others + self._hop_ns(root, others)
        self.clock_ns[others] = np.maximum(self.clock_ns[others], there_ns) + handle_ns
        self.clock_ns[0] += give_ns * len(others)
        self._count(root, others, nbytes)

    def check(self) -> None:
        """What was sent was received.

        Raises:
            InternalError: it was not.
        """
        for sent, received in ((self.sent, self.received), (self.sent_bytes, self.received_bytes)):
            if sent.sum() != received.sum():
                raise InternalError(f"{sent.sum()} messages or bytes were sent and {received.sum()} received")

    def _arrivals_ns(self, senders: Ranks, receivers: Ranks, nbytes: int) -> Times:
        """When messages that their senders' hosts have let go are there; they leave one after another."""
        carried_s = nbytes / np.where(self._near(senders, receivers), self._rate(near=True), self._rate(near=False))
        leave_ns = np.maximum(self.clock_ns[senders], self.link_free_ns[senders])
        self.link_free_ns[senders] = leave_ns + np.round(carried_s * 1e9).astype(np.int64)
        return np.asarray(self.link_free_ns[senders] + self._hop_ns(senders, receivers), np.int64)

    def _near(self, senders: Ranks, receivers: Ranks) -> npt.NDArray[np.bool_]:
        per_node = self.fabric.gpus_per_node
        return np.asarray(senders // per_node == receivers // per_node, np.bool_)

    def _rate(self, *, near: bool) -> float:
        f = self.fabric
        inside = min(f.inside_bytes_per_s, f.bridge_bytes_per_s)
        return inside if near else min(f.flow_bytes_per_s, f.nic_bytes_per_s)

    def _hop_ns(self, senders: Ranks, receivers: Ranks) -> Times:
        inside_ns, across_ns = to_ns(self.fabric.inside_hop_s), to_ns(self.fabric.network_hop_s)
        return np.where(self._near(senders, receivers), inside_ns, across_ns).astype(np.int64)

    def _count(self, senders: Ranks, receivers: Ranks, nbytes: int) -> None:
        for counts, step in ((self.sent, 1), (self.sent_bytes, nbytes)):
            np.add.at(counts, senders, step)
        for counts, step in ((self.received, 1), (self.received_bytes, nbytes)):
            np.add.at(counts, receivers, step)


def doubling(ranks: int) -> Iterator[Round]:
    """Rounds of an all-reduce by recursive doubling (Thakur et al. 2005, section 4.5).

    Ranks beyond the largest power of two send what they have to one of the others first, and are told at the end.
    """
    core = 1 << (ranks.bit_length() - 1)
    extra = np.arange(core, ranks)
    inner = np.arange(core)
    if len(extra):
        yield extra, extra - core
    distance = 1
    while distance < core:
        yield inner, inner ^ distance
        distance *= 2
    if len(extra):
        yield extra - core, extra


def ring_rounds(ranks: int) -> Iterator[Round]:
    """Rounds of a ring all-reduce: each rank sends one piece to the next, 2 (n - 1) times."""
    own = np.arange(ranks)
    for _ in range(2 * (ranks - 1)):
        yield own, (own + 1) % ranks
