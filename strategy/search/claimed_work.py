"""Claimed work: which of several processes does a piece of work; none is done twice, and none waits for another."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any

MOST = 2**20
"""So many pieces of work at most are told from one another; whoever asks for more does them itself."""
PATIENCE_S = 5.0
"""Who is not let in for so long takes the others to have ended while they were."""


def _nothing_claimed() -> SynchronizedArray[Any]:
    return multiprocessing.get_context("fork").Array("b", MOST)


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """Of pieces of work by number, made before this process forks: forks see the same."""

    taken: SynchronizedArray[Any] = field(default_factory=_nothing_claimed)

    def claim(self, number: int) -> bool:
        """Whether this process is the first that claims it."""
        lock = self.taken.get_lock()
        entered = lock.acquire(timeout=PATIENCE_S)
        try:
            is_first = number < MOST and not self.taken.get_obj()[number]
            if is_first:
                self.taken.get_obj()[number] = 1
            return is_first
        finally:
            if entered:
                lock.release()
