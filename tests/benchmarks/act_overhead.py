"""What an act costs beyond its kernel: local acts, and rendezvous of small arrays under real MPI.

    python -m tests.benchmarks.act_overhead --json

Prints one JSON document with every sample, in microseconds per act; a sample is one step of `ACTS` acts. Kernels do
nothing. `local` is an op that reads two registers and writes one; `all_reduce` and `transfer` move 16 bytes between
all ranks, or down a line of ranks, with one process per rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter

from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import Transport, lanes_of
from executor.runtime.transport.loopback import LoopbackHub
from executor.runtime.worker import Worker
from strategy.graph.graph import Graph
from strategy.graph.ops.base import Call
from strategy.program.program import ActKind, BoxingTask, Message, Program, TransferTask
from strategy.sbp.tensor import Box
from tests.executor.programs import Builder, define, load
from tests.mpi.launch import run_ranks

ACTS = 500
SAMPLES = 20
_ALL_ACTS = ACTS * (1 + SAMPLES)
"""Nobody writes what the first act reads: one piece of it serves the whole run."""
_BOX: Box = ((0, 2),)


def _do_nothing(call: Call) -> None:
    """The empty kernel."""


REGISTRY = {"nothing": define("nothing", _do_nothing)}


def local() -> tuple[Program, Graph]:
    """One rank; two ops that feed each other's next act."""
    b = Builder(1)
    b.register("state", 0, initial=1)
    b.register("between", 0, blocks=2)
    b.register("end", 0, blocks=2)
    half = ACTS // 2
    b.compute("one", 0, "nothing", [("state", _ALL_ACTS)], [("between", 1)], half)
    b.compute("two", 0, "nothing", [("state", _ALL_ACTS), ("between", 1)], [("end", 1)], half)
    b.stream(0, "compute", ["one", "two"] * half)
    return b.build()


def all_reduce(ranks: int) -> tuple[Program, Graph]:
    """All ranks reduce two elements, over and over."""
    b = Builder(ranks)
    task = BoxingTask(tuple(range(ranks)), (_BOX,) * ranks, (_BOX,) * ranks)
    for rank in range(ranks):
        b.register("term", rank, initial=1, shape=(2,))
        b.register("sum", rank, shape=(2,))
        b.actor("reduce", rank, ActKind.ALL_REDUCE, [("term", _ALL_ACTS)], [("sum", 1)], ACTS, task, 0)
        b.stream(rank, "communication", ["reduce"] * ACTS)
    return b.build()


def transfer(ranks: int) -> tuple[Program, Graph]:
    """Two elements go from each rank to the next: one act on either side, and one that passes them on."""
    b = Builder(ranks)
    for rank in range(ranks):
        b.register("in", rank, blocks=2, initial=int(rank == 0), shape=(2,))
        if rank > 0:
            task = _message(rank - 1, rank)
            b.actor("receive", rank, ActKind.TRANSFER, [], [("in", 1)], ACTS, task, rank - 1)
            b.stream(rank, "in", ["receive"] * ACTS)
        if rank < ranks - 1:
            task, share = _message(rank, rank + 1), _ALL_ACTS if rank == 0 else 1
            b.actor("send", rank, ActKind.TRANSFER, [("in", share)], [], ACTS, task, rank)
            b.stream(rank, "out", ["send"] * ACTS)
        else:
            b.actor("use", rank, ActKind.COMPUTE, [("in", 1)], [], ACTS)
            b.stream(rank, "compute", ["use"] * ACTS)
    return b.build()


def _message(source: int, target: int) -> TransferTask:
    return TransferTask((Message(source, target, _BOX),), {source: _BOX}, {target: _BOX})


def sample(program: Program, graph: Graph, transport: Transport) -> list[float]:
    """Microseconds per act of this rank, one sample per step, after one step to warm up."""
    worker = Worker(program, graph, transport.rank, transport, open_kernels("numpy"), REGISTRY, load)
    samples = []
    for _ in range(1 + SAMPLES):
        worker.records.clear()
        transport.barrier()
        began = perf_counter()
        worker.run(steps=1)
        samples.append((perf_counter() - began) * 1e6 / len(worker.records))
    return samples[1:]


def measure_local() -> list[float]:
    """Samples of the local program."""
    program, graph = local()
    return sample(program, graph, LoopbackHub(1).transport(0))


def measure_under_mpi() -> dict[str, list[float]] | None:
    """Samples of rank 0, there alone; called on all ranks."""
    from mpi4py import MPI

    from executor.runtime.transport.mpi import MpiTransport

    comm = MPI.COMM_WORLD
    programs: dict[str, Callable[[int], tuple[Program, Graph]]] = {"all_reduce": all_reduce, "transfer": transfer}
    found = {}
    for name, make in programs.items():
        program, graph = make(comm.size)
        transport = MpiTransport(comm, lanes_of(program))
        found[name] = sample(program, graph, transport)
        transport.close()
    return found if comm.rank == 0 else None


def main(arguments: list[str]) -> None:
    """Measure here, then under mpiexec with 2 and with 4 ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print every sample, as one JSON document")
    parser.add_argument("--rank-part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank_part:
        found = measure_under_mpi()
        if found is not None:
            print(json.dumps(found))
        return
    samples = {"local": measure_local()}
    for ranks in (2, 4):
        printed = json.loads(run_ranks(ranks, "tests.benchmarks.act_overhead", "--rank-part"))
        samples.update({f"{name}_{ranks}_ranks": values for name, values in printed.items()})
    if options.json:
        print(json.dumps({"unit": "us per act", "acts_per_sample": ACTS, "samples": samples}))
    else:
        for name, values in samples.items():
            print(f"{name:20} median {statistics.median(values):8.2f} us per act, best {min(values):8.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
