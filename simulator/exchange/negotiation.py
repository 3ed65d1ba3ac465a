"""Negotiation: ranks agree on which gradients all of them have, so that all begin the same exchanges in one order.

central: every rank names to rank 0 what it has; rank 0 tells all what all have (Sergeev and Del Balso 2018,
arXiv:1802.05799, section 4). 2 (n - 1) messages at rank 0.
agreed: every rank holds one bit per gradient, and the bits are and-ed by recursive doubling: nobody handles more than
2 ceil(log2 n) messages. So do Horovod's response cache, once it knows the gradients, and decentralised schemes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from simulator.exchange.fabric import Fabric
from simulator.exchange.messages import MessageClocks, doubling
from strategy.base.units import to_ns

_NAME_BYTES = 64
"""Of a request: name, shape, dtype, rank."""


class Negotiation(StrEnum):
    """Who agrees with whom."""

    CENTRAL = "central"
    AGREED = "agreed"


@dataclass(frozen=True, slots=True)
class Round:
    """One negotiation: until the last rank knows, messages handled by rank 0 and by the busiest rank, bytes of all."""

    time_ns: int
    root_messages: int
    most_messages: int
    total_messages: int
    nbytes: int


@lru_cache(maxsize=4096)
def negotiate(kind: Negotiation, fabric: Fabric, named: int, known: int) -> Round:
    """All ranks begin at once and name `named` gradients of the `known` ones."""
    run = MessageClocks.of(fabric)
    handle_ns = to_ns(fabric.message_s)
    if kind is Negotiation.CENTRAL:
        run.gather(named * _NAME_BYTES, handle_ns, to_ns(fabric.entry_s) * named)
        run.scatter(named * _NAME_BYTES, handle_ns)
    else:
        for senders, receivers in doubling(fabric.ranks):
            run.round(senders, receivers, -(-known // 8), handle_ns)
    run.check()
    handled = run.handled
    return Round(
        int(run.clock_ns.max()), int(handled[0]), int(handled.max()), int(run.sent.sum()), int(run.sent_bytes.sum())
    )
