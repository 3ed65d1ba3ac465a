"""Ten all-reduces beside an act of 0.2 s: mpiexec -n 2 python -m mpi4py -m tests.mpi.beside_an_act.

Prints, rank by rank, when the act and each of these ends, in milliseconds from the begin of the act.
"""

from __future__ import annotations

import json
import time

from mpi4py import MPI

from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import lanes_of
from executor.runtime.transport.mpi import MpiTransport
from executor.runtime.worker import Worker
from experiments.jobs.ranks import gather
from strategy.graph.ops.base import Call
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.tensor import Box
from tests.executor.programs import Builder, define, load

COLLECTIVES = 10
_BOX: Box = ((0, 2),)


def _compute(call: Call) -> None:
    """An act that leaves the interpreter to others, as large products do."""
    time.sleep(0.2)


def main() -> None:
    """One rank."""
    comm = MPI.COMM_WORLD
    b = Builder(comm.size)
    task = BoxingTask(tuple(range(comm.size)), (_BOX,) * comm.size, (_BOX,) * comm.size)
    for rank in range(comm.size):
        b.register("term", rank, initial=1, shape=(2,))
        b.register("sum", rank, shape=(2,))
        b.register("state", rank, initial=1)
        b.register("end", rank)
        b.actor("reduce", rank, ActKind.ALL_REDUCE, [("term", COLLECTIVES)], [("sum", 1)], COLLECTIVES, task, 0)
        b.compute("act", rank, "slow", [("state", 1)], [("end", 1)], 1)
        b.stream(rank, "communication", ["reduce"] * COLLECTIVES)
        b.stream(rank, "compute", ["act"])
    program, graph = b.build()
    transport = MpiTransport(comm, lanes_of(program))
    registry = {"slow": define("slow", _compute)}
    worker = Worker(program, graph, comm.rank, transport, open_kernels("numpy"), registry, load)
    transport.barrier()
    worker.run(steps=1)
    names = [program.actors[record[0]].name for record in worker.records]
    ((begin_ns, end_ns),) = [record[-2:] for record, name in zip(worker.records, names, strict=True) if name == "act"]
    ends_ns = [record[-1] for record, name in zip(worker.records, names, strict=True) if name == "reduce"]
    found = gather(
        comm,
        {
            "act_ms": (end_ns - begin_ns) / 1e6,
            "collectives_end_ms": [(one_ns - begin_ns) / 1e6 for one_ns in ends_ns],
        },
    )
    transport.close()
    if found is not None:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
