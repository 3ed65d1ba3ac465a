"""Memory of the host that a device uses, too: what the host itself writes there is found by looking.

The host writes with NumPy, which nobody can intercept. So a copy of all such memory is kept: where it differs, and no
job of the device has written, the host has. It is looked for before every act and job, so that all lies together in a
few chunks, which compare at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.strict_device.order import Memories, Memory, Use

_CHUNK = 1 << 14
_ALIGNED = 64


@dataclass(eq=False)
class Chunk:
    """Bytes that memories are carved out of, and what they held when they were last looked at."""

    now: bytearray
    seen: bytearray
    memories: list[Memory] = field(default_factory=list)
    used: int = 0


@dataclass(eq=False)
class HostMemory:
    """Memories of the host."""

    _chunks: list[Chunk] = field(default_factory=list)
    _chunk_of: dict[Memory, tuple[Chunk, int]] = field(default_factory=dict)
    """And where in it a memory begins."""
    _memories: Memories = field(default_factory=Memories)

    def new(self, nbytes: int) -> Memory:
        """More memory, which is looked at from now on."""
        if not self._chunks or self._chunks[-1].used + nbytes > len(self._chunks[-1].now):
            size = max(nbytes, _CHUNK)
            self._chunks.append(Chunk(bytearray(size), bytearray(size)))
        chunk = self._chunks[-1]
        begin, end = chunk.used, chunk.used + nbytes
        found = Memory(np.frombuffer(chunk.now, np.uint8)[begin:end])
        found.raw.fill(0xFF)
        chunk.seen[begin:end] = chunk.now[begin:end]
        chunk.used = -(-end // _ALIGNED) * _ALIGNED
        chunk.memories.append(found)
        self._chunk_of[found] = chunk, begin
        self._memories.add(found)
        return found

    def written(self) -> Iterator[Use]:
        """Runs of bytes that the host has written since this was last asked."""
        for chunk in self._chunks:
            if chunk.now == chunk.seen:
                continue
            for memory in chunk.memories:
                _, begin = self._chunk_of[memory]
                seen = np.frombuffer(chunk.seen, np.uint8)[begin : begin + memory.raw.size]
                changed = np.flatnonzero(memory.raw != seen)
                for run in np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if changed.size else ():
                    yield Use(memory, int(run[0]), int(run[-1]) + 1, True, "writes memory of the host")
            chunk.seen[:] = chunk.now

    def write(self, array: NDArray[Any]) -> None:
        """A job of the device has written an array."""
        found = self._memories.place(array)
        if found is not None:
            memory, low, high = found
            chunk, begin = self._chunk_of[memory]
            chunk.seen[begin + low : begin + high] = chunk.now[begin + low : begin + high]
