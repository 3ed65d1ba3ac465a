"""Ranks as threads, each in a world of its own view: what runs code on global tensors without MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from executor.frontend.world import World, use_world
from executor.runtime.transport.base import Transport
from tests.support.threads import on_transports

T = TypeVar("T")


def on_ranks(ranks: int, code: Callable[[World], T], *, timeout_s: float = 20.0) -> list[T]:
    """What `code` gives on every rank; raises what the first failing rank raised."""

    def drive(transport: Transport) -> T:
        with use_world(World(transport, timeout_s=timeout_s)) as world:
            result = code(world)
            world.calls.settle()
        transport.barrier()
        transport.close()
        return result

    return on_transports(ranks, drive)
