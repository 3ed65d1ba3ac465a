"""Under mpiexec: the cases of `tests.campaigns.layouts` that the arguments number, one after another.

The first rank prints a line per case, its number, and one per problem, the number and the problem.
"""

from __future__ import annotations

import sys

from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.mpi import MpiTransport
from executor.runtime.worker import Worker
from strategy.graph.ops import REGISTRY
from tests.campaigns.layouts import compare, loader, local_shapes, mpi_case, on_one_device, pieces_of, program_of, start


def main() -> None:
    """Run the cases."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for number in map(int, sys.argv[1:]):
        case = mpi_case(number)
        program = program_of(case)
        transport = MpiTransport(comm, lanes_of(program))
        worker = Worker(
            program, case.graph, comm.rank, transport, open_kernels("numpy"), REGISTRY, loader(case), stall_s=30.0
        )
        start(case, worker)
        worker.run(steps=1)
        mine = {held.name + f"@{held.stage}": pieces for held, pieces in pieces_of(case, {comm.rank: worker})}
        gathered = comm.gather(mine)
        transport.barrier()
        transport.close()
        if gathered is not None:
            print(number)
            wanted = on_one_device(case)
            problems = list(local_shapes(case, program))
            for held, _ in pieces_of(case, {}):
                key = f"{held.name}@{held.stage}"
                problems += compare(case, held, [piece for rank in gathered for piece in rank[key]], wanted)
            for problem in problems:
                print(number, " ".join(problem.split()))


if __name__ == "__main__":
    main()
