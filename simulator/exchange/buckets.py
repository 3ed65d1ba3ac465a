"""DDP: buckets of gradients in a fixed order, each all-reduced by a ring as soon as all of it is there.

Li et al. 2020 (arXiv:2006.15704, section 3.2): buckets hold 25 MiB, the first 1 MiB, in the reverse order of the
forward pass; nothing is negotiated, since all ranks have the same buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from simulator.exchange.collectives import RINGS, ring_links
from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import LinkGroup, TaskQueue
from simulator.exchange.rings import reduce_together
from simulator.exchange.training import Exchange, Task

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Buckets:
    """Bytes of the first bucket and of the others; rings of NCCL's communicator."""

    bucket_bytes: int = 25 * MIB
    first_bytes: int = MIB
    rings: int = RINGS

    @property
    def barrier(self) -> bool:
        """The optimiser runs when all buckets are reduced."""
        return True

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """One ring at a time."""
        return ring_links(fabric, self.rings)

    def start(self, task: Task) -> Exchange:
        """Deal out the buckets."""
        buckets: list[list[int]] = [[]]
        size, limit = 0, self.first_bytes
        for gradient in reversed(range(len(task.nbytes))):
            if buckets[-1] and size + task.nbytes[gradient] > limit:
                buckets.append([])
                size, limit = 0, self.bucket_bytes
            buckets[-1].append(gradient)
            size += task.nbytes[gradient]
        return _Buckets(task, [tuple(bucket) for bucket in buckets])


class _Buckets:
    """Buckets go on the wire in their order, whichever is filled first."""

    def __init__(self, task: Task, buckets: list[tuple[int, ...]]) -> None:
        self._task = task
        self._buckets = buckets
        self._there: set[int] = set()
        self._next = 0
        self._stream = TaskQueue()

    def ready(self, gradient: int) -> None:
        self._there.add(gradient)
        while self._there.issuperset(bucket := self._buckets[self._next]):
            self._there.difference_update(bucket)
            self._next = (self._next + 1) % len(self._buckets)
            self._stream.put(partial(reduce_together, self._task, bucket))
