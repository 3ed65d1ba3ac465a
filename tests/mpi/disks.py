"""`sbplan` on a mock of a bad disk: in every rank, `os.fsync` of a shard sleeps, or says that the disk is full.

python -m tests.mpi.disks slow SECONDS train PLAN ...      with limits so short that it matters
python -m tests.mpi.disks late SECONDS train PLAN ...      the same with the usual limits
python -m tests.mpi.disks full TIMES train PLAN ...        the first so many times
"""

from __future__ import annotations

import errno
import os
import sys
import time
from functools import partial
from pathlib import Path

from executor.supervision import watchdog

STALL_S = 1.5
_FSYNC = os.fsync


def main(argv: list[str]) -> int:
    """Run the verb of a rank, with the mock in place."""
    what, figure = argv[0], float(argv[1])
    left = int(figure)

    def slow(descriptor: int) -> None:
        if is_shard(descriptor):
            time.sleep(figure)
        _FSYNC(descriptor)

    def full(descriptor: int) -> None:
        nonlocal left
        if is_shard(descriptor) and left:
            left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _FSYNC(descriptor)

    os.fsync = {"slow": slow, "late": slow, "full": full}[what]
    if what == "slow":
        watchdog.Limits = partial(watchdog.Limits, stall_s=STALL_S)  # type: ignore[misc]
    from experiments.cli import main as command
    from experiments.jobs import saving

    saving.LAST_TRIES_S = (0.1, 0.2)  # type: ignore[assignment]
    return command(argv[2:])


def is_shard(descriptor: int) -> bool:
    """Whether a file holds tensors."""
    return Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".safetensors"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
