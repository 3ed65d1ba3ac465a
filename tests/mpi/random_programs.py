"""Random programs on real MPI, their acts delayed at random, one after the other to their ends.

mpiexec -n 3 python -m mpi4py -m tests.mpi.random_programs CASES SEED
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator

from mpi4py import MPI

from executor.runtime.hooks import Hooks
from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.mpi import MpiTransport
from executor.runtime.worker import Worker
from strategy.graph.graph import Graph
from strategy.program.program import Program
from tests.support.random_programs import coverage, random_program

STEPS = 3
LONGEST_S = 0.0003
STALL_S = 20.0
"""After which a rank says that it hangs."""


def main(cases: int, seed: int) -> None:
    """Rank 0 says how many there were, and how many of them had two communicators or more."""
    comm = MPI.COMM_WORLD
    communicators = []
    for number, program in programs(cases, seed, comm.size):
        lanes = lanes_of(program)
        communicators.append(len(set(lanes.values())))
        transport = MpiTransport(comm, lanes)
        rng = random.Random(number * comm.size + comm.rank)
        lengths = [[rng.choice((0.0, 0.0, rng.random() * LONGEST_S)) for _ in range(7)] for _ in program.actors]
        hooks = Hooks(delay=lambda actor, act, lengths=lengths: lengths[actor][act % 7])  # type: ignore[misc]
        worker = Worker(
            program,
            Graph({}, ()),
            comm.rank,
            transport,
            open_kernels("numpy"),
            {},
            _load_nothing,
            hooks=hooks,
            stall_s=STALL_S,
        )
        worker.run(steps=STEPS)
        assert worker.steps_done in (0, STEPS)
        transport.close()
    if comm.rank == 0:
        several = sum(count > 1 for count in communicators)
        print(json.dumps({"ended": len(communicators), "several communicators": several}))


def programs(cases: int, seed: int, ranks: int) -> Iterator[tuple[int, Program]]:
    """So many that cannot hang and are of so many ranks, each with its seed."""
    while cases:
        program = random_program(seed, resources=False)
        if program.ranks == ranks and coverage(program).live:
            yield seed, program
            cases -= 1
        seed += 1


def _load_nothing(task: object, number: int, arrays: object) -> None:
    """Random programs have no tasks; nothing is loaded."""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
