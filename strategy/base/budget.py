"""Budget: how long work may take, and how much of it may be done.

It is made once, from the limits of a command, and passed down; whoever has a share of it passes that on.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from strategy.base.errors import OutOfTimeError
from strategy.base.interruption import Interruption

# Entries of tables read per unit of work.
ENTRIES_PER_UNIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """A deadline by the monotonic clock, and the most entries of tables that may be read (None: any number).

    An interruption that is put off ends it, too.
    """

    deadline_s: float = math.inf
    max_entries: int | None = None
    interruption: Interruption | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(time_limit_s: float | None = None, work_limit: int | None = None) -> Budget:
        """A budget that begins now: seconds of wall time, millions of table entries read; None is no limit.

        A stop by work is the same on any machine.
        """
        deadline_s = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
        return Budget(deadline_s, None if work_limit is None else work_limit * ENTRIES_PER_UNIT)

    def left_s(self) -> float:
        """Seconds until the deadline, at least 0; infinity without one."""
        return 0.0 if self._is_interrupted() else max(0.0, self.deadline_s - time.monotonic())

    def is_over(self, entries: int = 0) -> bool:
        """Whether the time is up, or the work after so many entries read."""
        spent = self.max_entries is not None and entries >= self.max_entries
        return spent or time.monotonic() >= self.deadline_s or self._is_interrupted()

    def check(self) -> None:
        """Raise when the time is up.

        Raises:
            OutOfTimeError: it is.
        """
        if self.is_over():
            raise OutOfTimeError("the time was up before a plan was finished; raise the time limit")

    def share(self, part: float) -> Budget:
        """The budget of which a part of the time that is left remains; the work may be the same."""
        return replace(self, deadline_s=time.monotonic() + part * self.left_s())

    def at_most(self, time_limit_s: float) -> Budget:
        """The budget that ends after so many seconds, if it does not before."""
        return replace(self, deadline_s=min(self.deadline_s, time.monotonic() + time_limit_s))

    def with_work(self, work_limit: int) -> Budget:
        """The budget in which no more is read than so many millions of table entries, if it does not end before."""
        entries = work_limit * ENTRIES_PER_UNIT
        return replace(self, max_entries=entries if self.max_entries is None else min(entries, self.max_entries))

    def until(self, interruption: Interruption) -> Budget:
        """The budget that ends when somebody wants the end, too."""
        return replace(self, interruption=interruption)

    def _is_interrupted(self) -> bool:
        return self.interruption is not None and self.interruption.signum != 0


UNLIMITED = Budget()
