"""Ranks as threads, each in a world of its own view: what runs code on global tensors without MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from executor.frontend.world import World, use_world
from executor.runtime.transport.loopback import LoopbackHub

T = TypeVar("T")


def on_ranks(ranks: int, code: Callable[[World], T], *, timeout_s: float = 20.0) -> list[T]:
    """What `code` gives on every rank; raises what the first failing rank raised."""
    hub = LoopbackHub(ranks, {})
    results: dict[int, T] = {}

    def drive(rank: int) -> None:
        transport = hub.transport(rank)
        try:
            with use_world(World(transport, timeout_s=timeout_s)) as world:
                results[rank] = code(world)
                world.calls.settle()
            transport.barrier()
            transport.close()
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            hub.poison(failure)

    threads = [threading.Thread(target=drive, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failure is not None:
        raise hub.failure
    return [results[rank] for rank in range(ranks)]
