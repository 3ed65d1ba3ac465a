"""Under mpiexec: so many steps of the plans in the files that the arguments name, one after another, then compared.

Comparisons are shared out. The first rank prints a line per plan, the stem of its file's name, and one per problem,
the stem and the problem.
"""

from __future__ import annotations

import sys
from pathlib import Path

from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.mpi import MpiTransport
from executor.train import Trainer, program_of
from strategy.plan.plan import read_plan
from tests.campaigns.transparency import compare, pieces_of, ran, text_of


def main() -> None:
    """Train by the plans."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    mine = []
    steps = int(sys.argv[1])
    for position, file in enumerate(map(Path, sys.argv[2:])):
        plan = read_plan(file)
        program = program_of(plan)
        transport = MpiTransport(comm, lanes_of(program))
        trainer = Trainer(plan, transport, open_kernels("numpy"), text_of(plan), program=program)
        reports = [trainer.run()]
        first = pieces_of(trainer)
        reports += [trainer.run() for _ in range(steps - 1)]
        said = ran(trainer, [report.loss for report in reports if report is not None], first)
        transport.barrier()  # gives way, as a gather does not
        ranks = comm.gather(said, root=position % comm.size)
        transport.close()
        if ranks is not None:
            mine.append((file.stem, plan, program, ranks))
    found = [(stem, list(compare(plan, program, ranks, steps=steps))) for stem, plan, program, ranks in mine]
    everybody = MpiTransport(comm, {})
    everybody.barrier()
    everybody.close()
    for stem, problems in (pair for pairs in comm.gather(found) or () for pair in pairs):
        print(stem)
        for problem in problems:
            print(stem, " ".join(problem.split()))


if __name__ == "__main__":
    main()
