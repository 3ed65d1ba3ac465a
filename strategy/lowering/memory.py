"""Memory: bytes that each rank holds over the canonical order, and what fills the peak.

Registers only: parameters, moments, activations, gradients, copies and in-flight blocks. Scratch space of kernels and
the process itself are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategy.graph import Graph
from strategy.layout import Stages
from strategy.lowering.arrangement import Arrangement, Held
from strategy.sbp import local_box
from strategy.tensor import box_shape, is_empty


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most that one rank holds, when (an op index), and the tensors held then, largest first."""

    nbytes: int
    time: int
    tensors: tuple[tuple[str, int], ...]


def held_nbytes(graph: Graph, stages: Stages, tensor: Held, rank: int) -> int:
    """Bytes of all blocks of a tensor on one rank of its stage."""
    spec = graph.values[tensor.value].spec
    placement = stages.placements[tensor.stage]
    box = local_box(spec.shape, tensor.layout, placement.mesh, placement.coords(rank))
    return 0 if is_empty(box) else spec.piece(box_shape(box)).nbytes * tensor.lifetime.blocks


def memory_peak(graph: Graph, stages: Stages, arrangement: Arrangement, rank: int) -> MemoryPeak:
    """Sweep the lifetimes of all tensors of the rank's stage."""
    stage = next(i for i, placement in enumerate(stages.placements) if rank in placement.devices)
    mine = [(t, held_nbytes(graph, stages, t, rank)) for t in arrangement.tensors if t.stage == stage]
    change: dict[int, int] = {}
    for tensor, nbytes in mine:
        change[tensor.lifetime.begin] = change.get(tensor.lifetime.begin, 0) + nbytes
        change[tensor.lifetime.end] = change.get(tensor.lifetime.end, 0) - nbytes
    live = peak = at = 0
    for time in sorted(change):
        live += change[time]
        if live > peak:
            peak, at = live, time
    held = [(t.name, nbytes) for t, nbytes in mine if t.lifetime.begin <= at < t.lifetime.end]
    return MemoryPeak(peak, at, tuple(sorted(held, key=lambda pair: (-pair[1], pair[0]))))


def peak_memory_bytes(graph: Graph, stages: Stages, arrangement: Arrangement) -> tuple[int, ...]:
    """The peak of every rank, by rank."""
    ranks = sorted(rank for placement in stages.placements for rank in placement.devices)
    return tuple(memory_peak(graph, stages, arrangement, rank).nbytes for rank in ranks)
