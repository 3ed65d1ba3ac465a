"""Horovod: gradients that all ranks have are fused, once per cycle, and all-reduced by one ring at a time.

Sergeev and Del Balso 2018 (arXiv:1802.05799): rank 0 coordinates, and fuses what is ready up to a threshold. With the
response cache of later versions the ranks agree among themselves on gradients that they have exchanged before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from simulator.exchange.buckets import MIB
from simulator.exchange.collectives import RINGS, ring_links
from simulator.exchange.cycles import Cycles
from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import LinkGroup, TaskQueue
from simulator.exchange.negotiation import Negotiation
from simulator.exchange.rings import reduce_together
from simulator.exchange.training import Exchange, Task


@dataclass(frozen=True, slots=True)
class Horovod:
    """Fusion threshold in bytes, least seconds between negotiations, who negotiates, and rings of the communicator.

    64 MiB, 5 ms and a coordinator are the first releases'; 128 MiB, 1 ms and the cache today's.
    """

    fusion_bytes: int = 64 * MIB
    cycle_s: float = 5e-3
    cached: bool = False
    rings: int = RINGS

    @property
    def barrier(self) -> bool:
        """The optimiser waits for all gradients."""
        return True

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """One ring at a time."""
        return ring_links(fabric, self.rings)

    def start(self, task: Task) -> Exchange:
        """Start the background thread."""
        stream = TaskQueue()

        def agreed(gradients: Sequence[int]) -> None:
            for group in fused(gradients, task.nbytes, self.fusion_bytes):
                stream.put(partial(reduce_together, task, group))

        kind = Negotiation.AGREED if self.cached else Negotiation.CENTRAL
        return Cycles(task, self.cycle_s, kind, agreed)


def fused(gradients: Sequence[int], nbytes: Sequence[int], most_bytes: int) -> list[tuple[int, ...]]:
    """Gradients in their order, in groups of at most so many bytes; one that is larger is a group of its own."""
    groups: list[list[int]] = []
    size = 0
    for gradient in gradients:
        if not groups or size + nbytes[gradient] > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(gradient)
        size += nbytes[gradient]
    return [tuple(group) for group in groups]
