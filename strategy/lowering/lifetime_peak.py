"""Lifetime peak: memory as the search counts it, from the lifetimes of tensors, before anything is ordered or placed.

It is linear in the choice of signatures, which is what a search can bound. What a rank then allocates is laid out from
the program (`memory`): blocks that are in use for less than the lifetime, or in place, make it less; gaps, more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategy.base.numbers import Numbers
from strategy.graph.graph import Graph
from strategy.layout.arrangement import Arrangement, Held
from strategy.layout.layout import Stages
from strategy.lowering.memory import aligned
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import NdSbp, Owner, local_box
from strategy.sbp.tensor import Shape, TensorSpec, box_shape, is_empty


def held_nbytes(graph: Graph, stages: Stages, tensor: Held, rank: int) -> int:
    """Bytes of all blocks of a tensor on one rank of its stage."""
    spec, placement = graph.values[tensor.value].spec, stages.placements[tensor.stage]
    return _block_nbytes(spec, tensor.layout, placement.mesh, placement.coords(rank)) * tensor.lifetime.blocks


def _block_nbytes(spec: TensorSpec, layout: NdSbp, mesh: Shape, coords: Shape) -> int:
    box = local_box(spec.shape, layout, mesh, coords)
    return 0 if is_empty(box) else aligned(spec.piece(box_shape(box)).nbytes)


def lifetime_peaks(graph: Graph, stages: Stages, arrangement: Arrangement) -> tuple[int, ...]:
    """Of the rank of every stage that holds most."""
    owned = any(isinstance(sbp, Owner) for tensor in arrangement.tensors for sbp in tensor.layout)
    held: list[list[Held]] = [[] for _ in stages.placements]
    for tensor in arrangement.tensors:
        if graph.values[tensor.value].space is Space.DEVICE:
            held[tensor.stage].append(tensor)
    peaks = _Peaks(graph)
    return tuple(
        peaks.most(mine, placement, placement.devices if owned else _largest(placement))
        for mine, placement in zip(held, stages.placements, strict=True)
    )


class _Peaks:
    """What ranks of a graph hold; what is alike is looked at once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.specs: Numbers[TensorSpec] = Numbers()
        self.layouts: Numbers[NdSbp] = Numbers()
        self.known: dict[object, list[int]] = {}

    def most(self, held: Sequence[Held], placement: Placement, ranks: Sequence[int]) -> int:
        """The most that the tensors of a stage hold at one time in the memory of one of these ranks' devices."""
        if not held:
            return 0
        mesh, coords = placement.mesh, [placement.coords(rank) for rank in ranks]
        sizes: list[list[int]] = []
        for tensor in held:
            spec = self.graph.values[tensor.value].spec
            key = self.specs.of(spec), self.layouts.of(tensor.layout), mesh, len(ranks)
            if key not in self.known:
                self.known[key] = [_block_nbytes(spec, tensor.layout, mesh, one) for one in coords]
            sizes.append(self.known[key])
        lives = [tensor.lifetime for tensor in held]
        nbytes = np.array([life.blocks for life in lives])[:, None] * np.array(sizes)
        times, at = np.unique([(life.begin, life.end) for life in lives], return_inverse=True)
        begins, ends = at.reshape(-1, 2).T
        change = np.zeros((len(times), len(ranks)), np.int64)
        np.add.at(change, begins, nbytes)
        np.subtract.at(change, ends, nbytes)
        return max(0, int(change.cumsum(0).max()))


def _largest(placement: Placement) -> tuple[int, ...]:
    """The ranks one of which holds most: the first; where sequences are split, what it holds changes along the axis."""
    return placement.group(
        placement.devices[0], *(axis for axis, name in enumerate(placement.axes) if name == "context")
    )
