"""World: the ranks that work on global tensors together, seen from one of them.

All ranks run one program, operation by operation, also those that hold no piece of the tensors at hand. Before each
operation they tell one another what it is, so a rank that strays is named instead of waited for.

The world of a process is opened on first use: MPI's, where this process is a rank of a job, else this process alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from executor.frontend.calls import Calls
from executor.runtime.pieces import Requests
from executor.runtime.transport.base import Group, Lane, Transport, wait
from strategy.base.errors import EnvironmentLacks, InputError, RunError
from strategy.cost.cost import CostModel
from strategy.graph.graph import Attrs
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.layout.convert import Converter
from strategy.sbp.placement import Placement

_RECORD = 256
_TAGS = 2**14
"""Numbers of single messages; those of programs follow."""
_DEVICE = Device("core", "numpy", 2**40, 1e10, 1e10, 1e-6)
_LINK = Link(1e9, 1e-5)
"""Latency and bandwidth of messages between processes, roughly: what conversions are compared by."""
_HOST = Host(2**40, 1e10, 1e10, 1e10, 1e-6)
"""The host of each rank, which holds arrays of its own: a copy takes as long as any other in memory."""


@dataclass(frozen=True, slots=True)
class Noted:
    """An op that was run on global tensors; `number` is what its random masks are told apart by."""

    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    attrs: Attrs
    number: int


@dataclass(slots=True)
class World:
    """One rank's view of all ranks.

    `state` are pieces of what outlives an operation, such as the parameters of modules, by owner. `calls` run behind
    the program; operations on state begin when they are through. `acts` counts the ops that code asked for, alike in
    every layout, unlike `operations`. `tapes` are those that note down operations now.
    """

    transport: Transport
    timeout_s: float = 60.0
    seed: int = 0
    state: MutableMapping[Any, Any] = field(default_factory=WeakKeyDictionary)
    operations: int = 0
    acts: int = 0
    draws: int = 0
    calls: Calls = field(default_factory=Calls)
    tapes: list[list[Noted]] = field(default_factory=list)
    _messages: int = 0
    _reserved: int = _TAGS
    _converters: dict[tuple[Placement, ...], Converter] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.transport.size

    def agree(self, operation: str) -> None:
        """See that all ranks are about to do the same.

        Raises:
            RunError: they are not; names what each rank does.
            TransportError: a rank does not come.
        """
        self.operations += 1
        told = self.tell(operation)
        if len(set(told)) > 1:
            by_text: dict[str, list[int]] = {}
            for rank, text in enumerate(told):
                by_text.setdefault(text, []).append(rank)
            lines = "".join(f"\n  rank {', '.join(map(str, ranks))}: {text}" for text, ranks in by_text.items())
            raise RunError(f"operation {self.operations}: the ranks do not do the same{lines}")

    def tell(self, text: str) -> list[str]:
        """What every rank says, in their order; a long text ends in its digest.

        Raises:
            TransportError: a rank does not come.
        """
        if self.size == 1:
            return [text]
        everyone = tuple(range(self.size))
        records = [np.zeros(_RECORD, np.uint8) for _ in everyone]
        records[self.rank][:] = _record(text)
        number = self.lane(everyone)
        request = self.transport.all_gather(everyone, number, records[self.rank], records)
        wait(request, self.transport, timeout_s=self.timeout_s)
        return [record.tobytes().rstrip(b"\0").decode("utf-8", "replace") for record in records]

    def note(self, noted: Noted) -> None:
        """Note down an operation on every tape that is open."""
        for tape in self.tapes:
            tape.append(noted)

    def lane(self, group: Group) -> int:
        """The number of the collectives of a group that this rank belongs to."""
        number = int.from_bytes(hashlib.sha256(repr(group).encode()).digest()[:7], "big")
        self.transport.open(number, Lane(group, "global tensors"))
        return number

    def message_number(self) -> int:
        """A number for the messages of one transfer; all ranks ask for it."""
        self._messages = (self._messages + 1) % _TAGS
        return self._messages

    def reserve(self, count: int) -> int:
        """The first of so many numbers for the rendezvous of a program; all ranks ask for them."""
        self._reserved += count
        return self._reserved - count

    def finish(self, requests: Requests) -> None:
        """Drive an act to its end."""
        for request in requests:
            wait(request, self.transport, timeout_s=self.timeout_s)

    def converter(self, *placements: Placement) -> Converter:
        """Prices and chains of conversions on a placement, or between two."""
        if placements not in self._converters:
            cluster = Cluster("world", 1, self.size, _DEVICE, _LINK, _LINK, _HOST)
            self._converters[placements] = Converter(CostModel(cluster, {}), placements)
        return self._converters[placements]

    def check(self, placement: Placement) -> None:
        """Refuse devices that are no ranks of this world.

        Raises:
            InputError: names them.
        """
        beyond = [device for device in placement.devices if device >= self.size]
        if beyond:
            raise InputError("no such ranks", where="placement", got=beyond, expected=f"0 to {self.size - 1}")


_CURRENT: ContextVar[World | None] = ContextVar("world", default=None)


def current_world() -> World:
    """The world that operations take place in; the first call opens it."""
    found = _CURRENT.get()
    if found is None:
        found = _open()
        _CURRENT.set(found)
    return found


@contextmanager
def use_world(world: World) -> Iterator[World]:
    """Let operations take place in `world` meanwhile."""
    token = _CURRENT.set(world)
    try:
        yield world
    finally:
        _CURRENT.reset(token)


def _open() -> World:
    from executor.supervision.environment import find_rank

    if find_rank() is None:
        from executor.runtime.transport.loopback import LoopbackHub

        return World(LoopbackHub(1, {}).transport(0))
    from executor.runtime.transport.mpi import MpiTransport, load_mpi

    mpi = load_mpi()
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise EnvironmentLacks("this MPI library serves one thread, and calls of graphs run in a second one")
    return World(MpiTransport(mpi.COMM_WORLD, {}))


def _record(operation: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The text of an operation, of one length; what is too long ends in a digest of all of it."""
    raw = operation.encode()
    if len(raw) > _RECORD:
        digest = hashlib.sha256(raw).hexdigest()[:16].encode()
        raw = raw[: _RECORD - len(digest) - 5] + b" ... " + digest
    return np.frombuffer(raw.ljust(_RECORD, b"\0"), np.uint8)
