"""How long a thread waits for a core: it grows while others run on it, and only then."""

from __future__ import annotations

import os
import threading
import time

from experiments.jobs.core_wait import waited_for_core_s


def _spin(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def _waited_beside(others: int) -> float:
    """What a thread waits beside others on one core; they are processes, since Python runs one thread at a time."""
    core = min(os.sched_getaffinity(0))
    pids = []
    for _ in range(others):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {core})
            _spin(0.4)
            os._exit(0)
        pids.append(pid)
    found: list[float] = []

    def measured() -> None:
        os.sched_setaffinity(0, {core})  # of this thread alone
        before_s = waited_for_core_s()
        _spin(0.1)
        found.append(waited_for_core_s() - before_s)

    thread = threading.Thread(target=measured)
    thread.start()
    thread.join()
    for pid in pids:
        os.waitpid(pid, 0)
    return found[0]


def test_beside_another_process_on_its_core_a_thread_waits() -> None:
    assert _waited_beside(2) > 0.05
    assert waited_for_core_s() <= time.monotonic()
