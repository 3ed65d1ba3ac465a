"""How the memory of a rank grows while global tensors are laid out anew, again and again.

mpiexec -n 2 python -m tests.mpi.eager CALLS
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from executor.frontend.global_tensor import broadcast, from_numpy, placement, split

ROWS, COLUMNS = 512, 512
WARM_UP = 50


def main(calls: int) -> None:
    """Rank 0 says how many bytes its resident memory has grown by."""
    ranks = placement([0, 1])
    whole = np.ones((ROWS, COLUMNS), np.float32)
    grown = 0
    for number in range(WARM_UP + calls):
        if number == WARM_UP:
            grown = -resident_nbytes()
        rows = from_numpy(whole, placement=ranks, sbp=split(0))
        columns = rows.to_global(placement=ranks, sbp=split(1))
        columns.to_global(placement=ranks, sbp=broadcast)
    grown += resident_nbytes()
    if rows.world.rank == 0:
        print(json.dumps({"grown_nbytes": grown}))


def resident_nbytes() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(int(sys.argv[1]))
