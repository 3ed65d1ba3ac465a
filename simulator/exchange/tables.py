"""Embedding tables split over the GPUs of a node, as HugeCTR's: rows are exchanged, not the tables' gradients.

Every GPU looks up what the samples of all need of its share, and rows go to the samples' GPUs by an all-to-all before
the dense layers, their gradients back after them. The dense layers are data-parallel: one all-reduce at their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.exchange.collectives import BRIDGE, GPU_IN, GPU_OUT, RINGS, ring, ring_links
from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import LinkGroup
from simulator.exchange.training import Exchange, Task
from simulator.exchange.workload import ComputeSpan, Workload
from strategy.base.errors import InputError
from strategy.base.units import to_ns


@dataclass(frozen=True, slots=True)
class TableExchange:
    """Numbers of the gradients that stay, the tables', and of the exchanges of rows."""

    kept: frozenset[int]
    rows: frozenset[int]

    @property
    def barrier(self) -> bool:
        """The update is one for all."""
        return True

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """Those of a ring, which the all-to-all crosses too."""
        return ring_links(fabric, RINGS)

    def start(self, task: Task) -> Exchange:
        """Wait for gradients.

        Raises:
            InputError: there are several nodes.
        """
        if task.fabric.nodes > 1:
            raise InputError("tables are split inside a node", got=f"{task.fabric.nodes} nodes", expected="1 node")
        return _Tables(task, self)


class _Tables:
    def __init__(self, task: Task, options: TableExchange) -> None:
        self._task = task
        self._options = options
        self._dense = frozenset(range(len(task.nbytes))) - options.kept - options.rows
        self._there: set[int] = set()

    def ready(self, gradient: int) -> None:
        """A table's gradient is where it is needed; rows leave at once, dense gradients when all are there."""
        task = self._task
        if gradient in self._options.kept:
            task.exchanged(gradient)
        elif gradient in self._options.rows:
            gpus = task.fabric.gpus_per_node
            moved = (gpus - 1) * -(-task.nbytes[gradient] // gpus)
            latency_ns = to_ns(task.fabric.inside_hop_s) if gpus > 1 else 0
            task.tally.data_messages += gpus * (gpus - 1)
            legs = {GPU_OUT: moved, GPU_IN: moved, BRIDGE: moved}
            task.loop.transfer(legs, latency_ns, lambda: task.exchanged(gradient))
        else:
            self._there.add(gradient)
            if self._there == self._dense:
                self._there.clear()
                self._reduce()

    def _reduce(self) -> None:
        task = self._task
        found = ring(task.fabric, sum(task.nbytes[gradient] for gradient in self._dense), 0)
        task.tally.data_messages += found.messages

        def done() -> None:
            for gradient in sorted(self._dense):
                task.exchanged(gradient)

        task.loop.transfer(found.legs, found.latency_ns, done)


def split_tables(whole: Workload, least_bytes: int, row_bytes: int) -> tuple[Workload, TableExchange]:
    """A workload whose parameters of at least so many bytes are tables; a GPU's samples need `row_bytes` of rows.

    Raises:
        InputError: it has no such parameter.
    """
    kept = frozenset(number for number, nbytes in enumerate(whole.nbytes) if nbytes >= least_bytes)
    if not kept:
        raise InputError("no tables", where=whole.name, got=f"{max(whole.nbytes)} bytes", expected=str(least_bytes))
    there, back = len(whole.nbytes), len(whole.nbytes) + 1
    last = max(place for place, span in enumerate(whole.spans) if kept.intersection(span.needs))
    first = min(place for place, span in enumerate(whole.spans) if kept.intersection(span.gives))
    spans = list(whole.spans)
    # What a GPU computes from rows on waits until they are there; its share of the tables, until their gradients are.
    spans[first:first] = [ComputeSpan(0, gives=(back,)), ComputeSpan(0, needs=(back,))]
    spans[last + 1 : last + 1] = [ComputeSpan(0, gives=(there,)), ComputeSpan(0, needs=(there,))]
    workload = Workload(whole.name, tuple(spans), (*whole.nbytes, row_bytes, row_bytes))
    return workload, TableExchange(kept, frozenset({there, back}))
