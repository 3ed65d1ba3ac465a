"""Ranks on two nodes: how fast messages are inside and between, by the figures of one rank of each pair."""

from __future__ import annotations

import json
import os
import time

import numpy as np
from mpi4py import MPI

_NBYTES = 2**21


def bytes_per_s(comm: MPI.Intracomm, peer: int) -> float:
    """Of the fastest of a few messages from rank 0 to a peer."""
    message, seconds = np.zeros(_NBYTES, np.uint8), []
    for _ in range(4):
        began_s = time.perf_counter()
        if comm.rank == 0:
            comm.Send(message, dest=peer)
            comm.Recv(message[:1], source=peer)
        elif comm.rank == peer:
            comm.Recv(message, source=0)
            comm.Send(message[:1], dest=0)
        seconds.append(time.perf_counter() - began_s)
    return _NBYTES / min(seconds)


def main() -> None:
    """Print names by rank, clocks by rank, and rates to the rank beside and to one of the other node."""
    comm = MPI.COMM_WORLD
    names = comm.gather(os.uname().nodename)
    clocks = comm.gather(time.perf_counter())
    rates = [bytes_per_s(comm, peer) for peer in (1, 2)]
    if comm.rank == 0:
        print(json.dumps({"names": names, "clocks": clocks, "bytes_per_s": rates}))


if __name__ == "__main__":
    main()
