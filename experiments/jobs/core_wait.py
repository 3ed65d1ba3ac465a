"""Waiting for a core: how long a rank was ready to run while other processes had the machine's cores.

Linux counts it for every thread (`/proc/thread-self/schedstat`: nanoseconds run, nanoseconds waited, times run). A step
in which a rank waited is longer than its plan makes it.
"""

from __future__ import annotations

from pathlib import Path


def waited_for_core_s(pid: int | None = None) -> float:
    """What the calling thread, or a process's first one, has waited so far; 0 where the system does not count it."""
    counts = Path("/proc/thread-self/schedstat" if pid is None else f"/proc/{pid}/schedstat")
    try:
        return int(counts.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
