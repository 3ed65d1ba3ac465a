"""`experiments.jobs.blocks` where a timeline takes long to write, with a limit of stalls so short that it matters."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from executor.supervision import watchdog
from strategy.program import timeline
from tests.mpi.disks import SLOW_S, STALL_S

_WRITE = timeline.write_timeline


def write_slowly(*arguments: Any) -> None:
    """As on a busy disk."""
    time.sleep(SLOW_S)
    _WRITE(*arguments)


if __name__ == "__main__":
    timeline.write_timeline = write_slowly
    watchdog.Limits = partial(watchdog.Limits, stall_s=STALL_S)  # type: ignore[misc,assignment]
    from experiments.jobs import blocks

    blocks.main()
