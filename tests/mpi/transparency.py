"""Under mpiexec: the plans of `tests.campaigns.transparency` that the arguments number, one after another.

The first rank prints a line per plan, its number, and one per problem, the number and the problem.
"""

from __future__ import annotations

import sys

from executor.kernels.base import open_kernels
from executor.train import Trainer, program_of
from executor.transport.base import lanes_of
from executor.transport.mpi import MpiTransport
from tests.campaigns.transparency import STEPS, compare, mpi_case, pieces_of, ran, text_of


def main() -> None:
    """Train by the plans."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for number in map(int, sys.argv[1:]):
        plan = mpi_case(number).plan
        program = program_of(plan)
        transport = MpiTransport(comm, lanes_of(program))
        trainer = Trainer(plan, transport, open_kernels("numpy"), text_of(plan), program=program)
        reports = [trainer.run()]
        first = pieces_of(trainer)
        reports += [trainer.run() for _ in range(STEPS - 1)]
        ranks = comm.gather(ran(trainer, [report for report in reports if report is not None], first))
        transport.barrier()
        transport.close()
        if ranks is not None:
            print(number)
            for problem in compare(plan, program, ranks):
                print(number, " ".join(problem.split()))


if __name__ == "__main__":
    main()
