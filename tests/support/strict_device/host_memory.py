"""Memory of the host that a device uses, too: what the host itself writes there is found by looking.

The host writes with NumPy, which nobody can intercept. So a copy of all such memory is kept: where it differs, and no
job of the device has written, the host has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.strict_device.order import Memory, Use, place


@dataclass(eq=False)
class HostMemory:
    """Memories of the host, each with what it held when it was last looked at."""

    memories: list[Memory] = field(default_factory=list)
    _seen: list[NDArray[np.uint8]] = field(default_factory=list)

    def add(self, memory: Memory) -> None:
        """Look at this one, too."""
        self.memories.append(memory)
        self._seen.append(memory.raw.copy())

    def written(self) -> Iterator[Use]:
        """Runs of bytes that the host has written since this was last asked."""
        for memory, seen in zip(self.memories, self._seen, strict=True):
            if memory.raw.tobytes() == seen.tobytes():
                continue
            changed = np.flatnonzero(memory.raw != seen)
            for run in np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1):
                yield Use(memory, int(run[0]), int(run[-1]) + 1, True, "writes memory of the host")
            seen[:] = memory.raw

    def write(self, array: NDArray[Any]) -> None:
        """A job of the device has written an array."""
        found = place(self.memories, array)
        if found is not None:
            memory, begin, end = found
            seen = next(s for m, s in zip(self.memories, self._seen, strict=True) if m is memory)
            seen[begin:end] = memory.raw[begin:end]
