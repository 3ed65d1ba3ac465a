"""Progress: acts that wait for transfers go on side by side, a step at a time."""

from __future__ import annotations

import time
from collections import deque

from executor.runtime.pieces import Requests
from executor.runtime.transport.base import PendingTransfer, TransportError


class ActProgress:
    """One act under way; `limit_s` is how long it may wait for one transfer."""

    def __init__(self, requests: Requests, rank: int, limit_s: float) -> None:
        self._requests = requests
        self._rank = rank
        self._limit_s = limit_s
        self._waited: PendingTransfer | None = None
        self._since_s = time.monotonic()
        self.moved = 0

    def advance(self) -> bool:
        """Go on as far as can be; whether the act is over.

        Raises:
            TransportError: a transfer takes too long.
        """
        while True:
            if self._waited is None:
                self._waited = next(self._requests, None)
                if self._waited is None:
                    return True
                self._since_s = time.monotonic()
            if not self._waited.test():
                if time.monotonic() - self._since_s > self._limit_s:
                    raise TransportError(
                        f"rank {self._rank} waited {self._limit_s:g} s for {self._waited.describe()}: a rank of these "
                        "is stopped, or cannot be reached"
                    )
                return False
            self._waited = None
            self.moved += 1


class InOrder:
    """Acts one after the other, as the collectives of one communicator must be on all of its ranks."""

    def __init__(self, rank: int, limit_s: float) -> None:
        self._rank = rank
        self._limit_s = limit_s
        self._acts: deque[Requests] = deque()
        self._now: ActProgress | None = None
        self._moved_before = 0

    @property
    def moved(self) -> int:
        """Transfers that are through."""
        return self._moved_before + (0 if self._now is None else self._now.moved)

    def append(self, act: Requests) -> None:
        """Do this when all before it is done."""
        self._acts.append(act)

    def advance(self) -> bool:
        """Go on as far as can be; whether nothing is left."""
        while True:
            if self._now is None:
                if not self._acts:
                    return True
                self._now = ActProgress(self._acts.popleft(), self._rank, self._limit_s)
            if not self._now.advance():
                return False
            self._moved_before += self._now.moved
            self._now = None
