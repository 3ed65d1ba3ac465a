"""All ranks of a program as threads of this process, over the loopback transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from executor.runtime.acts import Load
from executor.runtime.hooks import Hooks
from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.base import Transport, lanes_of
from executor.runtime.transport.loopback import LoopbackHub, Tamper, faithfully
from executor.runtime.worker import Worker
from strategy.graph.graph import Graph
from strategy.graph.ops.base import OpDef
from strategy.program.program import Program

T = TypeVar("T")


def on_transports(ranks: int, code: Callable[[Transport], T]) -> list[T]:
    """What `code` gives on every rank, each a thread of this process; raises what the first failing rank raised."""
    hub = LoopbackHub(ranks, {})
    found: dict[int, T] = {}

    def drive(rank: int) -> None:
        try:
            found[rank] = code(hub.transport(rank))
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            hub.poison(failure)

    threads = [threading.Thread(target=drive, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failure is not None:
        raise hub.failure
    return [found[rank] for rank in range(ranks)]


def run_loopback(
    program: Program,
    graph: Graph,
    registry: Mapping[str, OpDef],
    load: Load,
    *,
    steps: int,
    prepare: Callable[[Worker], None] | None = None,
    hooks: Callable[[int], Hooks] | None = None,
    reports: Callable[[int], Sequence[str]] | None = None,
    backend: str = "numpy",
    stall_s: float = 60.0,
    tamper: Tamper = faithfully,
) -> list[Worker]:
    """Run all ranks of a program as threads of this process; gives their workers, by rank.

    `prepare` fills a worker's state registers before its first act; `hooks` and `reports` answer per rank.

    Raises:
        RankFault: the first failure of any rank, as it was raised there.
    """
    hub = LoopbackHub(program.ranks, lanes_of(program), tamper=tamper)
    workers: list[Worker] = []
    for rank in range(program.ranks):
        worker = Worker(
            program,
            graph,
            rank,
            hub.transport(rank),
            open_kernels(backend),
            registry,
            load,
            reports=() if reports is None else reports(rank),
            hooks=None if hooks is None else hooks(rank),
            stall_s=stall_s,
        )
        if prepare is not None:
            prepare(worker)
        workers.append(worker)

    def drive(worker: Worker) -> None:
        try:
            worker.run(steps=steps)
            worker.transport.barrier()
            worker.transport.close()
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            hub.poison(failure)

    threads = [threading.Thread(target=drive, args=(worker,), name=f"rank {worker.rank}") for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as failure:
        hub.poison(failure)
        raise
    if hub.failure is not None:
        raise hub.failure
    return workers
