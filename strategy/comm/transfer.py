"""Transfer: what the busiest rank sends where a tensor goes from one placement to another.

Every piece is dealt out by its holders to those who want some of it, in turn (`transfer_task`). Where the pieces of
both sides are even, a smaller tensor is counted that is cut as this one is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from strategy.comm.boxing import Ints
from strategy.comm.busiest_rank import pieces_by_rank
from strategy.comm.rank_parts import replicas
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, Owner, Split, local_boxes
from strategy.sbp.tensor import Shape, TensorSpec


def most_transferred(
    spec: TensorSpec, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
) -> tuple[int, tuple[int, ...]]:
    """Elements that the busiest rank sends in a transfer dealt as by `transfer_task`, and the ranks that take part."""
    apart = set(sender.devices).isdisjoint(receiver.devices)
    if _even_pieces(spec, source, sender.mesh) and _even_pieces(spec, target, receiver.mesh):
        dims = len(spec.shape)
        cuts = zip(_cuts(source, sender.mesh, dims), _cuts(target, receiver.mesh, dims), strict=True)
        shape = tuple(one * other for one, other in cuts)
        counted, ranks = (_dealt_apart if apart else _dealt)(shape, source, sender, target, receiver)
        return counted * math.prod(spec.shape) // math.prod(shape), ranks
    if apart and _has_grid(spec, source, sender.mesh) and _has_grid(spec, target, receiver.mesh):
        return _dealt_apart(spec.shape, source, sender, target, receiver)
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


@lru_cache(maxsize=1 << 14)
def _dealt_apart(
    shape: Shape, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
) -> tuple[int, tuple[int, ...]]:
    """`_dealt` where pieces are a grid and no rank is on both sides, without a look at every pair of ranks.

    Along every dim, few pieces held meet few wanted. Receivers are alike that want one piece and take it from holders
    at one place: at their own position modulo the number of replicas.
    """
    held, wanted = _numbered(shape, source, sender.mesh), _numbered(shape, target, receiver.mesh)
    pieces, wishes, sizes = (np.array([value]) for value in (0, 0, 1))
    for size, mine, its in zip(shape, held.begins, wanted.begins, strict=True):
        edges = np.union1d(mine, its)
        pieces = np.add.outer(pieces * len(mine), np.searchsorted(mine, edges, "right") - 1).ravel()
        wishes = np.add.outer(wishes * len(its), np.searchsorted(its, edges, "right") - 1).ravel()
        sizes = np.multiply.outer(sizes, np.diff(edges, append=size)).ravel()
    replicas_of = len(held.number) // math.prod(len(begins) for begins in held.begins)
    place = np.arange(len(wanted.number)) % replicas_of
    alike, times = np.unique(wanted.number * replicas_of + place, return_counts=True)
    order = np.argsort(wishes, kind="stable")
    first, last = (np.searchsorted(wishes[order], alike // replicas_of, side) for side in ("left", "right"))
    counts = last - first
    met = order[np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
    takers = np.repeat(np.arange(len(alike)), counts)
    sent = np.bincount(
        pieces[met] * replicas_of + alike[takers] % replicas_of, sizes[met] * times[takers], len(held.number)
    )
    holders = np.array(sender.devices)[np.argsort(held.number, kind="stable")]
    return int(sent.max()), tuple(sorted({*receiver.devices, *holders[sent > 0].tolist()}))


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """The pieces of a grid in row-major order: where they begin along every dim, and which one every rank holds."""

    begins: tuple[Ints, ...]
    number: Ints


@lru_cache(maxsize=256)
def _numbered(shape: Shape, layout: NdSbp, mesh: Shape) -> _Numbered:
    begins, _ = pieces_by_rank(shape, layout, mesh)
    number = np.zeros(len(begins), np.int64)
    each = []
    for along in begins.T:
        found, position = np.unique(along, return_inverse=True)
        number = number * len(found) + position
        each.append(found)
    return _Numbered(tuple(each), number)


@lru_cache(maxsize=4096)
def _has_grid(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> bool:
    """Whether the pieces are a grid, each held by as many ranks: none is empty, and no rank has them all."""
    if spec.ragged is not None or any(isinstance(sbp, Owner) for sbp in layout):
        return False
    _, lengths = pieces_by_rank(spec.shape, layout, mesh)
    return bool((lengths > 0).all())


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
