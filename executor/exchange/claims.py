"""Claims: a transport carries one exchange at a time; two would take each other's messages."""

from __future__ import annotations

import threading
from weakref import WeakSet

from executor.runtime.transport.base import Transport
from strategy.base.errors import InputError

_claimed: WeakSet[Transport] = WeakSet()
_lock = threading.Lock()


def claim(transport: Transport) -> None:
    """Take a transport for an exchange.

    Raises:
        InputError: another exchange has it.
    """
    with _lock:
        if transport in _claimed:
            raise InputError(
                "the transport carries another exchange, and two would take each other's messages",
                where=f"rank {transport.rank}",
                hint="close that exchange first, or make a transport for each",
            )
        _claimed.add(transport)


def release(transport: Transport) -> None:
    """Give it back."""
    with _lock:
        _claimed.discard(transport)
