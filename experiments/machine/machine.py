"""Machine: what the computer that we run on can do, as the cluster `local`.

The data sheet of a processor core is measured, in about a second: nobody prints one. Measured figures differ a little
from call to call, and so may plans; `sbplan doctor --write cluster.toml` keeps one measurement for all of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from strategy.base.errors import InputError, present

if TYPE_CHECKING:
    from strategy.hardware.cluster import Cluster

MATRIX = 384
"""Rows of the square float32 matrices whose product is timed: they fit a core's own cache."""

COPY_NBYTES = 64 * 2**20
"""Bytes of the array whose copy is timed: more than a core's share of any cache."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What one core does, alone: matrix products, copies (bytes read and written), a call, a message."""

    flop_per_s: float
    memory_bytes_per_s: float
    call_s: float
    message_s: float


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def measure_rates() -> Rates:
    """Rates of this core, each the median of several trials; with one BLAS thread if NumPy was loaded with one."""
    import numpy as np

    left, right = (np.full((MATRIX, MATRIX), value, np.float32) for value in (0.5, 2.0))
    product = np.empty_like(left)
    source = np.zeros(COPY_NBYTES, np.uint8)
    target = np.ones_like(source)
    zero = np.zeros(1, np.float32)
    return Rates(
        flop_per_s=2 * MATRIX**3 / _seconds(lambda: np.matmul(left, right, out=product), calls=4),
        memory_bytes_per_s=2 * COPY_NBYTES / _seconds(lambda: np.copyto(target, source), calls=1),
        call_s=_seconds(lambda: np.add(zero, zero, out=zero), calls=1000),
        message_s=_message_s(),
    )


def local_cluster(ranks: int, rates: Rates | None = None) -> Cluster:
    """This machine with one rank per core; `rates` are measured if not given.

    A message between two processes is copied into shared memory and out of it, and a copy reads and writes: a quarter
    of the memory's bandwidth is left. Ranks share the physical memory evenly. The host of a core is the core itself:
    what is offloaded is copied to where it might as well have been, which is good for rehearsals.
    """
    from strategy.hardware.cluster import Cluster, Device, Host, Link

    found = rates or measure_rates()
    device = Device("core", "numpy", memory_bytes() // ranks, found.memory_bytes_per_s, found.flop_per_s, found.call_s)
    link = Link(found.memory_bytes_per_s / 4, found.message_s)
    rates_of_copies = found.memory_bytes_per_s / 2, found.call_s
    host = Host(device.memory_bytes, device.memory_bytes_per_s, device.flop_per_s, *rates_of_copies)
    return Cluster(f"local:{ranks}", 1, ranks, device, link, link, host)


def find_machine(text: str) -> Cluster:
    """`local` (a rank per core, two at least) or `local:N`, a preset, or a TOML file.

    Raises:
        InputError: none of these.
    """
    from strategy.hardware.presets import find_cluster

    name, colon, count = text.partition(":")
    if name != "local":
        return find_cluster(text)
    if not colon:
        return local_cluster(max(2, num_cores()))
    if not re.fullmatch(r"[1-9][0-9]{0,3}", count):
        raise InputError("not a number of ranks", where=text, got=count, expected="such as local:2")
    return local_cluster(int(count))


def _seconds(job: Callable[[], object], *, calls: int, trials: int = 7) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(trials + 1):
        began_s = time.perf_counter()
        for _ in range(calls):
            job()
        times.append((time.perf_counter() - began_s) / calls)
    return median(times[1:])


def _message_s() -> float:
    """Seconds until another process has a byte that we sent: half of a round trip through `cat`."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:
        there, back = present(echo.stdin, "a pipe"), present(echo.stdout, "a pipe")

        def round_trip() -> None:
            there.write(b"x")
            back.read(1)

        found = _seconds(round_trip, calls=50) / 2
        there.close()
    return found
