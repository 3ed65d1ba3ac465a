"""A tensor under way: what a rank has announced, until its result is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from executor.exchange.tensors import TensorKey
from executor.runtime.transport.base import HostArray
from strategy.base.errors import RunError


class MismatchedTensor(RunError):
    """Ranks mean different things by one name."""


class StalledTensor(RunError):
    """A tensor that some ranks have and others do not come up with."""


class NonFiniteTensor(RunError):
    """A tensor with NaN or infinities; it is left as it is on all ranks."""


class PendingTensor:
    """One announced tensor; its array belongs to the exchange until it is through.

    Args:
        key: what all ranks call it.
        array: its values here; an all-reduce and a broadcast put the result in their place.
        callback: called with the result by the exchange's own thread, once, when the last fragment is there; it may
            announce, and must not wait.
        wait_for: waits until the event says that it is over; lets the exchange know meanwhile.
    """

    def __init__(
        self,
        key: TensorKey,
        array: HostArray,
        callback: Callable[[HostArray], None] | None,
        wait_for: Callable[[threading.Event], None],
    ) -> None:
        self.key = key
        self.array = array
        self.finite = True
        self.since_s = time.monotonic()
        self.fragments_left = 1
        self._callback = callback
        self._wait_for = wait_for
        self._over = threading.Event()
        self._error: Exception | None = None

    def is_over(self) -> bool:
        """Whether the result, or an error, is there."""
        return self._over.is_set()

    def wait(self) -> HostArray:
        """The result, when it is there.

        Raises:
            NonFiniteTensor: it is not finite on some rank.
            RunError: the exchange ended.
        """
        if not self._over.is_set():
            self._wait_for(self._over)
        if self._error is not None:
            raise self._error
        return self.array

    def finish(self) -> None:
        """The result is there: tell."""
        try:
            if self._callback is not None:
                self._callback(self.array)
        finally:
            self._over.set()

    def fail(self, error: Exception) -> None:
        """There is no result, and there will be none."""
        if not self._over.is_set():
            self._error = error
            self._over.set()
