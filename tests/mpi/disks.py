"""`sbplan` on a mock of a bad disk: in every rank, `os.fsync` of a shard takes long, or says that the disk is full.

python -m tests.mpi.disks slow SECONDS train PLAN ...      it sleeps, with limits so short that it matters
python -m tests.mpi.disks held FILE train PLAN ...         it waits until there is such a file, within the usual limits
python -m tests.mpi.disks full TIMES train PLAN ...        the disk is full, the first so many times
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
SLOW_S = 2.1
"""What takes longer than a stall."""
_POLL_S = 0.01
_FSYNC = os.fsync


def main(argv: list[str]) -> int:
    """Run the verb of a rank, with the mock in place."""
    what, figure = argv[0], argv[1]
    left = int(figure) if what == "full" else 0

    def slow(descriptor: int) -> None:
        if is_shard(descriptor):
            time.sleep(float(figure))
        _FSYNC(descriptor)

    def held(descriptor: int) -> None:
        while is_shard(descriptor) and not Path(figure).exists():
            time.sleep(_POLL_S)
        _FSYNC(descriptor)

    def full(descriptor: int) -> None:
        nonlocal left
        if is_shard(descriptor) and left:
            left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _FSYNC(descriptor)

    os.fsync = {"slow": slow, "held": held, "full": full}[what]
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
