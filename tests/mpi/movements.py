"""Random boxing steps and movements on real MPI; every rank checks its own part and says so.

mpiexec -n 3 python -m mpi4py -m tests.mpi.movements CASES SEED [addresses|mpi3]

With `addresses` MPI is given those of arrays, as it would be of memory of GPUs: by messages alone. With `mpi3` the
library is taken for one of MPI 3 that counts up to 64 bytes.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mpi4py import MPI

from executor.runtime.kernels.gpu.launch import address_of
from executor.runtime.transport import mpi_messages
from executor.runtime.transport.base import Lane, Transport, TransportError, wait
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from executor.runtime.transport.mpi import MpiTransport
from strategy.program.program import TransferTask
from tests.executor.random_boxing import KINDS, play, random_boxing


def main(cases: int, seed: int, mode: str = "") -> None:
    """Play `cases` random cases, the same on all ranks."""
    comm, addresses = MPI.COMM_WORLD, mode == "addresses"
    if mode == "mpi3":
        MPI.Get_version, mpi_messages.INT_MAX, mpi_messages._PIECE = lambda: (3, 1), 64, 48
    rng = np.random.default_rng(seed)
    played = [random_boxing(rng, comm.size, KINDS[index % len(KINDS)]) for index in range(cases)]
    lanes = {n: Lane(c.task.group) for n, c in enumerate(played) if not isinstance(c.task, TransferTask)}
    host, waited = MpiTransport(comm, lanes), list[int]()
    transport: MpiTransport | CudaMpiTransport = host
    if addresses:
        transport = CudaMpiTransport(MPI, comm, host, address_of, lambda: waited.append(1))
    for number, case in enumerate(played):
        before = sum(transport.bytes_sent.values())
        found = play(case, number, transport)
        sent = sum(comm.allgather(sum(transport.bytes_sent.values()) - before))
        assert sent == 2 * case.sent_nbytes, (number, case.kind, sent)
        if found is not None:
            np.testing.assert_array_equal(found, case.expected[comm.rank], err_msg=f"case {number}, {case.kind}")
    assert bool(waited) is addresses
    refuse_what_does_not_fit(transport, cases)
    if not addresses:
        refuse_without_a_lane(transport, cases)
    close_with_a_message_left(transport, cases)
    played_by = comm.gather(comm.rank)
    if played_by is not None:
        print(f"{cases} cases by ranks {played_by}")


def refuse_what_does_not_fit(transport: Transport, number: int) -> None:
    """A message shorter than its receiver expects, a number beyond the tags."""
    if transport.rank == 0:
        wait(transport.send(1, number, np.zeros(3)), transport)
    if transport.rank == 1:
        with pytest.raises(TransportError, match="24 bytes came, 40 were expected"):
            wait(transport.receive(0, number, np.zeros(5)), transport)
    with pytest.raises(TransportError, match="beyond the largest tag"):
        transport.send(0, 2**40, np.zeros(1))


def refuse_without_a_lane(transport: Transport, number: int) -> None:
    """Collectives of the library have no tag: they need one."""
    with pytest.raises(TransportError, match=f"no lane for rendezvous {number}"):
        transport.exchange((0, 1), number, (None, None), (None, None))


def close_with_a_message_left(transport: MpiTransport | CudaMpiTransport, number: int) -> None:
    """From rank 0 to rank 1, which has never asked for it."""
    if transport.rank == 0:
        transport._comm.Isend([np.zeros(3), MPI.DOUBLE], dest=1, tag=number)
    if transport.rank != 1:
        transport.close()
        return
    with pytest.raises(TransportError, match=rf"never asked for 24 bytes from rank 0 \(rendezvous {number}\)"):
        transport.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
