"""Workspaces: where the scratch of a rank's acts lies on a device with streams, declared before the first act.

Ops declare what their acts use beside their operands (`strategy.graph.ops.scratch`), kernels and movements by asking
for it while they are bound. Acts of one stream follow each other, so all that they begin anew shares one place, and
what is kept from act to act has a place of its own; streams have places apart. All of it is one allocation, laid out by
what lays out registers (`strategy.lowering.arena`), at multiples of 256 bytes. Nothing else is given to an act: what
was not declared is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategy.base.errors import InternalError
from strategy.graph.ops.base import Array, ArrayModule
from strategy.graph.ops.scratch import SCRATCH_ALIGNMENT, ScratchSizes
from strategy.lowering.arena import Span, assign_offsets
from strategy.sbp.tensor import Shape


@dataclass(slots=True)
class DeclaringScratch:
    """Notes what is asked for; what it gives has shapes and addresses of the host's, and is not to be used."""

    xp: ArrayModule = np
    anew: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)

    def get(self, name: str, shape: Shape, dtype: Any) -> Array:
        """See `Scratch`."""
        found = np.empty(shape, dtype)
        self.anew[name] = max(found.nbytes, self.anew.get(name, 0))
        return found

    def constant(self, name: str, shape: Shape, dtype: Any, make: Callable[[], Array]) -> Array:
        """See `Scratch`; nothing is made."""
        found = np.empty(shape, dtype)
        self.kept[name] = found.nbytes
        return found

    @property
    def sizes(self) -> ScratchSizes:
        """All that was asked for."""
        return ScratchSizes(tuple(self.anew.values()), tuple(self.kept.values()))


@dataclass(slots=True)
class _Region:
    """Memory that arrays are taken from, one behind the other."""

    memory: Array
    taken: int = 0

    def take(self, shape: Shape, dtype: Any) -> Array | None:
        """An array; None where there is no room for it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        begin, self.taken = self.taken, self.taken + _rounded(nbytes)
        if self.taken > self.memory.size:
            return None
        return self.memory[begin : begin + nbytes].view(np.dtype(dtype)).reshape(shape)


class AssignedScratch:
    """See `strategy.graph.ops.scratch.Scratch`: arrays in memory that was set aside for what is declared.

    Args:
        xp: the array module.
        owner: whose scratch it is, for messages.
        anew: bytes of what is written anew by every act.
        kept: bytes of what is kept.
    """

    def __init__(self, xp: ArrayModule, owner: str, anew: Array, kept: Array) -> None:
        self.xp, self.owner = xp, owner
        self.anew, self.kept = anew, kept
        self._regions = {"anew": _Region(anew), "kept": _Region(kept)}
        self._arrays: dict[str, Array] = {}

    def get(self, name: str, shape: Shape, dtype: Any) -> Array:
        """See `Scratch`.

        Raises:
            InternalError: it was not declared.
        """
        found, size = self._arrays.get(name), math.prod(shape)
        if found is None or found.size < size or found.dtype != dtype:
            found = self._arrays[name] = self._take("anew", name, shape, dtype)
        return found if found.shape == tuple(shape) else found.reshape(-1)[:size].reshape(shape)

    def constant(self, name: str, shape: Shape, dtype: Any, make: Callable[[], Array]) -> Array:
        """See `Scratch`.

        Raises:
            InternalError: it was not declared.
        """
        found = self._arrays.get(name)
        if found is None or found.shape != tuple(shape) or found.dtype != dtype:
            found = self._arrays[name] = self._take("kept", name, shape, dtype)
            self.xp.copyto(found, make())
        return found

    def _take(self, region: str, name: str, shape: Shape, dtype: Any) -> Array:
        found = self._regions[region].take(shape, dtype)
        if found is None:
            nbytes, total = math.prod(shape) * np.dtype(dtype).itemsize, self._regions[region].memory.size
            raise InternalError(
                f"{self.owner} asks for scratch {name!r}, {nbytes} bytes ({region}), and has declared {total} in all"
            )
        return found


@dataclass(frozen=True, slots=True)
class ScratchSection:
    """Where the scratch of one actor lies in the memory of its rank: bytes [begin, end)."""

    anew: tuple[int, int]
    kept: tuple[int, int]

    def of(self, memory: Array, xp: ArrayModule, owner: str) -> AssignedScratch:
        """The scratch of `owner` there."""
        return AssignedScratch(xp, owner, memory[slice(*self.anew)], memory[slice(*self.kept)])


def assign_workspaces(
    declared: Mapping[int, ScratchSizes], stream_of: Mapping[int, int]
) -> tuple[dict[int, ScratchSection], int]:
    """Actor -> where its scratch lies, and the bytes of all of it.

    Args:
        declared: actor -> its scratch.
        stream_of: actor -> its stream.
    """
    found: dict[int, ScratchSection] = {}
    bottom = 0
    for stream in sorted({stream_of[actor] for actor in declared}):
        actors = [actor for actor in sorted(declared) if stream_of[actor] == stream]
        nbytes = [[sum(map(_rounded, sizes)) for sizes in (declared[a].anew, declared[a].kept)] for a in actors]
        always = np.array([[0, len(actors) + 1]], np.int64)
        spans = [Span(np.array([[at, at + 1]], np.int64), anew) for at, (anew, _) in enumerate(nbytes)]
        spans += [Span(always, kept) for _, kept in nbytes]
        offsets, height = assign_offsets(spans)
        for at, (actor, sizes) in enumerate(zip(actors, nbytes, strict=True)):
            begins = bottom + offsets[at], bottom + offsets[len(actors) + at]
            anew, kept = ((begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
            found[actor] = ScratchSection(anew, kept)
        bottom += height
    return found, bottom


def _rounded(nbytes: int) -> int:
    return -(-nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
