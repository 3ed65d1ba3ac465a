"""Lifetime peak: memory as the search counts it, from the lifetimes of tensors, before anything is ordered or placed.

It is linear in the choice of signatures, which is what a search can bound. What a rank then allocates is laid out from
the program (`memory`): blocks that are in use for less than the lifetime, or in place, make it less; gaps, more.
"""

from __future__ import annotations

from strategy.graph.graph import Graph
from strategy.layout.arrangement import Arrangement, Held
from strategy.layout.layout import Stages
from strategy.lowering.memory import aligned
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import Owner, local_box
from strategy.sbp.tensor import box_shape, is_empty


def held_nbytes(graph: Graph, stages: Stages, tensor: Held, rank: int) -> int:
    """Bytes of all blocks of a tensor on one rank of its stage."""
    spec = graph.values[tensor.value].spec
    placement = stages.placements[tensor.stage]
    box = local_box(spec.shape, tensor.layout, placement.mesh, placement.coords(rank))
    return 0 if is_empty(box) else aligned(spec.piece(box_shape(box)).nbytes) * tensor.lifetime.blocks


def lifetime_peak(graph: Graph, stages: Stages, arrangement: Arrangement, rank: int) -> int:
    """The most that the tensors of the rank's stage hold at one time in the memory of its device."""
    stage = next(i for i, placement in enumerate(stages.placements) if rank in placement.devices)
    change: dict[int, int] = {}
    for tensor in arrangement.tensors:
        if tensor.stage == stage and graph.values[tensor.value].space is Space.DEVICE:
            nbytes, lifetime = held_nbytes(graph, stages, tensor, rank), tensor.lifetime
            change[lifetime.begin] = change.get(lifetime.begin, 0) + nbytes
            change[lifetime.end] = change.get(lifetime.end, 0) - nbytes
    live = peak = 0
    for time in sorted(change):
        live += change[time]
        peak = max(peak, live)
    return peak


def lifetime_peaks(graph: Graph, stages: Stages, arrangement: Arrangement) -> tuple[int, ...]:
    """Of the rank of every stage that holds most."""
    owned = any(isinstance(sbp, Owner) for tensor in arrangement.tensors for sbp in tensor.layout)
    return tuple(
        max(
            lifetime_peak(graph, stages, arrangement, rank)
            for rank in (placement.devices if owned else _largest(placement))
        )
        for placement in stages.placements
    )


def _largest(placement: Placement) -> tuple[int, ...]:
    """The ranks one of which holds most: the first; where sequences are split, what it holds changes along the axis."""
    return placement.group(
        placement.devices[0], *(axis for axis, name in enumerate(placement.axes) if name == "context")
    )
