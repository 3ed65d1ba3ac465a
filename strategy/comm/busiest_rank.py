"""Shares: what the busiest rank sends in one step of boxing, for tensors that their layouts cut evenly.

Where every split divides its dim, pieces are the same fractions of the tensor whatever its size, and so is what is
sent: it is counted once, on a tensor whose dims are as long as there are ranks. An all-reduce cuts what a rank holds
into as many parts as there are ranks, which need not be even: the busiest rank has the largest (`boxing`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from strategy.comm.boxing import BoxingStep, boxing_task, most_sent_nbytes, replicas
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, Owner, Split, local_boxes
from strategy.sbp.tensor import DType, Shape, TensorSpec


def most_sent(spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement, rank: int) -> int:
    """Bytes that the busiest rank sends in a step in the group of `rank`, which has the largest pieces."""
    mesh = placement.mesh
    before, after = (_even_pieces(spec, layout, mesh) for layout in (source, step.target))
    if before and step.kind is ActKind.ALL_REDUCE:
        own, ranks = math.prod(spec.shape) // before, math.prod(mesh[axis] for axis in step.axes)
        return spec.sent_nbytes(own + -(-own // ranks) * (ranks - 2))
    if before and after:
        counted, size = _counted(step, source, mesh, len(spec.shape))
        return spec.sent_nbytes(counted * math.prod(spec.shape) // size)
    return most_sent_nbytes(step.kind, boxing_task(spec, source, step, placement, rank), spec)


def most_transferred(
    spec: TensorSpec, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
) -> tuple[int, tuple[int, ...]]:
    """Elements that the busiest rank sends in a transfer dealt as by `transfer_task`, and the ranks that take part."""
    if _even_pieces(spec, source, sender.mesh) and _even_pieces(spec, target, receiver.mesh):
        dims = len(spec.shape)
        cuts = zip(_cuts(source, sender.mesh, dims), _cuts(target, receiver.mesh, dims), strict=True)
        shape = tuple(one * other for one, other in cuts)
        counted, ranks = _dealt(shape, source, sender, target, receiver)
        return counted * math.prod(spec.shape) // math.prod(shape), ranks
    return _dealt(spec.shape, source, sender, target, receiver)


@lru_cache(maxsize=1 << 14)
def _dealt(
    shape: Shape, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
) -> tuple[int, tuple[int, ...]]:
    """`most_transferred` of a tensor of that shape.

    Of all pairs of a piece and a receiver at once: arrays are [pieces, receivers, dims].
    """
    found = replicas(zip(sender.devices, local_boxes(shape, source, sender.mesh), strict=True))
    whole = ((0, 1),)  # one dim more, so that scalars have one
    wanted = np.array([whole + box for box in local_boxes(shape, target, receiver.mesh)])
    held = np.array([whole + box for box in found])[:, None]
    lengths = np.minimum(held[..., 1], wanted[..., 1]) - np.maximum(held[..., 0], wanted[..., 0])
    shared = np.maximum(lengths, 0).prod(axis=2)
    kept = {rank: piece for piece, holders in enumerate(found.values()) for rank in holders}
    own = [(kept[rank], place) for place, rank in enumerate(receiver.devices) if rank in kept]
    ranks = {rank for rank, takes in zip(receiver.devices, shared.any(axis=0).tolist(), strict=True) if takes}
    for piece, place in own:
        shared[piece, place] = 0
    counts = np.array([len(holders) for holders in found.values()])
    dealers = (np.cumsum(counts) - counts)[:, None] + np.arange(shared.shape[1]) % counts[:, None]
    sent = np.bincount(dealers.ravel(), weights=shared.ravel(), minlength=len(kept)).tolist()
    senders = [rank for holders in found.values() for rank in holders]
    ranks.update(rank for rank, size in zip(senders, sent, strict=True) if size)
    return int(max(sent)), tuple(sorted(ranks))


@lru_cache(maxsize=4096)
def _even_pieces(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> int:
    """How many pieces of one size there are, if every rank has one; else 0."""
    if any(isinstance(sbp, Owner) for sbp in layout):
        return 0
    pieces = _cuts(layout, mesh, len(spec.shape))
    even = spec.ragged is None and all(size % count == 0 for size, count in zip(spec.shape, pieces, strict=True))
    return math.prod(pieces) if even else 0


def _cuts(layout: NdSbp, mesh: Shape, dims: int) -> tuple[int, ...]:
    """Into how many pieces every dim is cut."""
    pieces = [1] * dims
    for sbp, parts in zip(layout, mesh, strict=True):
        if isinstance(sbp, Split):
            pieces[sbp.dim] *= parts
    return tuple(pieces)


@lru_cache(maxsize=1 << 16)
def _counted(step: BoxingStep, source: NdSbp, mesh: Shape, dims: int) -> tuple[int, int]:
    """Elements sent of a tensor of so many dims, and how many it has."""
    ranks = math.prod(mesh)
    spec = TensorSpec((ranks,) * dims, DType.INT32)
    placement = Placement(tuple(range(ranks)), mesh, tuple(map(str, range(len(mesh)))))
    task = boxing_task(spec, source, step, placement, 0)
    return most_sent_nbytes(step.kind, task, spec) // spec.dtype.nbytes, math.prod(spec.shape)
