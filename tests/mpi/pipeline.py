"""The hand-built pipeline on real MPI; rank 0 prints both weights, as hexadecimal bytes.

mpiexec -n 2 python -m mpi4py -m tests.mpi.pipeline MICRO_BATCHES STEPS
"""

from __future__ import annotations

import sys

from mpi4py import MPI

from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.mpi import MpiTransport
from executor.runtime.worker import Worker
from tests.executor.programs import REGISTRY, load, pipeline, start_weights


def main(micro_batches: int, steps: int) -> None:
    """Run `steps` steps, in two parts."""
    comm = MPI.COMM_WORLD
    program, graph = pipeline(micro_batches, in_flight=2)
    transport = MpiTransport(comm, lanes_of(program))
    worker = Worker(program, graph, comm.rank, transport, open_kernels("numpy"), REGISTRY, load)
    start_weights(worker)
    worker.run(steps=1)
    worker.run(steps=steps - 1)
    transport.close()
    weights = comm.gather(worker.read(("first", "second")[comm.rank]).tobytes().hex())
    if weights is not None:
        print(*weights)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
