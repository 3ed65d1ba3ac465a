"""Bytes sent: what a rank, or the busiest of a group, sends to other ranks in one act of a conversion.

On one level the figures are those of the table in `boxing`; on two, those of `hierarchical`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategy.comm.boxing import Ints
from strategy.comm.hierarchical import box_size, part_sizes
from strategy.comm.rank_parts import outgoing, replicas
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.tensor import Box, TensorSpec, is_empty


def sent_nbytes(kind: ActKind, task: BoxingTask | TransferTask, rank: int, spec: TensorSpec) -> int:
    """Bytes that `rank` sends to other ranks in one act; expected ones where the tensor is ragged."""
    return sum(part_nbytes(kind, task, rank, spec))


def most_sent_nbytes(kind: ActKind, task: BoxingTask, spec: TensorSpec) -> int:
    """Bytes that the busiest rank of a group sends to others in one act on one level, as `sent_nbytes` counts them."""
    if kind is ActKind.ALL_TO_ALL:
        held, wanted = _Pieces.of(task.source_boxes), _Pieces.of(task.target_boxes)
        if not held.lack and not wanted.lack:
            return spec.sent_nbytes(_most_exchanged(held, wanted))
    return spec.sent_nbytes(max(_sent_size(kind, task, me) for me in range(len(task.group))))


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """The pieces of a group's ranks as arrays.

    Attributes:
        boxes: [ranks, dims, 2], begin and end.
        holders: [pieces, copies], the ranks that hold each; nothing where some rank lacks a piece.
        lack: whether some rank does.
    """

    boxes: Ints
    holders: Ints
    lack: bool

    @staticmethod
    def of(boxes: Sequence[Box]) -> _Pieces:
        """The pieces of ranks in order."""
        lack = any(map(is_empty, boxes))
        return _Pieces(np.array(boxes), np.array([] if lack else list(replicas(enumerate(boxes)).values())), lack)


def _most_exchanged(held: _Pieces, wanted: _Pieces) -> int:
    """What `outgoing` sums up to on the busiest rank, for all ranks at once; what is shared is [pieces, ranks]."""
    ranks, copies = len(wanted.boxes), held.holders.shape[1]
    shared = np.ones((len(held.holders), ranks), np.int64)
    for of_held, of_wanted in zip(
        held.boxes[held.holders[:, 0]].swapaxes(0, 1), wanted.boxes.swapaxes(0, 1), strict=True
    ):
        begin, end = of_held.T[..., None]
        shared *= np.maximum(np.minimum(end, of_wanted[:, 1]) - np.maximum(begin, of_wanted[:, 0]), 0)
    np.put_along_axis(shared, held.holders, 0, axis=1)
    senders = held.holders[:, np.arange(ranks) % copies]
    return int(np.bincount(senders.ravel(), weights=shared.ravel(), minlength=ranks).max())


def part_nbytes(kind: ActKind, task: BoxingTask | TransferTask, rank: int, spec: TensorSpec) -> tuple[int, ...]:
    """Bytes that `rank` sends to other ranks in each part of one act; an act on two levels has several (`levels`)."""
    if isinstance(task, TransferTask):
        return (spec.sent_nbytes(sum(box_size(m.box) for m in task.messages if m.source == rank != m.target)),)
    if task.nodes:
        return tuple(spec.sent_nbytes(size) for size in part_sizes(kind, task)[rank])
    return (spec.sent_nbytes(_sent_size(kind, task, task.group.index(rank))),)


def group_part_nbytes(kind: ActKind, task: BoxingTask, spec: TensorSpec) -> dict[int, tuple[int, ...]]:
    """`part_nbytes` of every rank of a group."""
    if task.nodes:
        sizes = part_sizes(kind, task)
        return {rank: tuple(spec.sent_nbytes(size) for size in sizes[rank]) for rank in task.group}
    return {rank: (spec.sent_nbytes(_sent_size(kind, task, me)),) for me, rank in enumerate(task.group)}


def _sent_size(kind: ActKind, task: BoxingTask, me: int) -> int:
    """Elements that the `me`-th rank of a group sends to others."""
    others = len(task.group) - 1
    own = box_size(task.source_boxes[me])
    if kind is ActKind.ALL_GATHER:
        return own * others
    if kind is ActKind.REDUCE_SCATTER:
        return own - box_size(task.target_boxes[me])
    if kind is ActKind.ALL_REDUCE:
        part = own // (others + 1) + (me < own % (others + 1))  # as `balanced_split` cuts it
        return own - part + part * others
    if kind is ActKind.ROTATE:
        return own
    if kind is ActKind.ALL_TO_ALL:
        return sum(box_size(box) for i, box in enumerate(outgoing(task, me)) if box is not None and i != me)
    return 0
