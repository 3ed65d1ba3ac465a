"""Exchanged: what the busiest rank of a group sends in all-to-alls, counted rank by rank, of many at once.

Along every axis of the group's mesh a dim is split, or all ranks hold the same, before and after. Of several copies of
a piece, the one is sent whose place among them is the receiver's position in the group modulo their number, as
`rank_parts.outgoing` has it; whoever holds a copy takes nothing of that piece from others.
"""

from __future__ import annotations

import math

import numpy as np

from strategy.base.compiled import in_place
from strategy.comm.boxing import Ints
from strategy.sbp.tensor import Shape

LACKING = -1
"""In place of elements: some rank has nothing."""


def exchanged(blocks: Ints, mesh: Shape, dims: Ints, shifts: Ints) -> Ints:
    """(rows,): elements that the busiest rank of a group sends, or `LACKING`.

    Args:
        blocks: [rows, dims], lengths of what the group holds.
        mesh: of the group.
        dims: [rows, 2, axes], which dim each axis splits before and after; less than 0 where it splits none.
        shifts: [rows, 2, axes], how far that is rotated.
    """
    sent, ranks = np.zeros(len(blocks), np.int64), math.prod(mesh)
    pieces, held = np.zeros((2, 2, ranks, blocks.shape[1]), np.int64), np.zeros((2, ranks), np.int64)
    count = _count_exchanged.worth(len(blocks) * ranks * ranks)
    count(np.ascontiguousarray(blocks, np.int64), np.array(mesh, np.int64), dims, shifts, pieces, held, sent)
    return sent


@in_place
def _count_exchanged(blocks: Ints, mesh: Ints, dims: Ints, shifts: Ints, pieces: Ints, held: Ints, sent: Ints) -> None:
    """Fill in `sent`.

    `pieces` are begins and lengths of what ranks have before and after; `held` which piece it is before, and which of
    its copies.
    """
    axes, ranks, size = mesh.size, pieces.shape[2], blocks.shape[1]
    begins, lengths = pieces
    for row in range(sent.size):
        lacks = False
        copies = wanted_copies = 1
        for axis in range(axes):
            copies *= mesh[axis] if dims[row, 0, axis] < 0 else 1
            wanted_copies *= mesh[axis] if dims[row, 1, axis] < 0 else 1
        for side in range(2):
            for rank in range(ranks):
                piece = copy = 0
                for dim in range(size):
                    begins[side, rank, dim], lengths[side, rank, dim] = 0, blocks[row, dim]
                stride = ranks
                for axis in range(axes):
                    parts, dim = mesh[axis], dims[row, side, axis]
                    stride //= parts
                    place = rank // stride % parts
                    if dim < 0:
                        copy = copy * parts + place
                        continue
                    piece = piece * parts + place
                    place = (place + shifts[row, side, axis]) % parts
                    least, longer = lengths[side, rank, dim] // parts, lengths[side, rank, dim] % parts
                    begins[side, rank, dim] += place * least + min(place, longer)
                    lengths[side, rank, dim] = least + (1 if place < longer else 0)
                    lacks = lacks or lengths[side, rank, dim] == 0
                if side == 0:
                    held[0, rank], held[1, rank] = piece, copy
        if lacks:
            sent[row] = LACKING
            continue
        most = 0
        for rank in range(ranks):
            total = 0
            if copies == 1:
                # All that it has is wanted, and its own part of that stays.
                whole = kept = 1
                for dim in range(size):
                    whole *= lengths[0, rank, dim]
                    end = min(
                        begins[0, rank, dim] + lengths[0, rank, dim],
                        begins[1, rank, dim] + lengths[1, rank, dim],
                    )
                    kept *= max(end - max(begins[0, rank, dim], begins[1, rank, dim]), 0)
                total = whole * wanted_copies - kept
            else:
                for receiver in range(held[1, rank], ranks, copies):
                    if held[0, receiver] == held[0, rank]:
                        continue
                    shared = 1
                    for dim in range(size):
                        end = min(
                            begins[0, rank, dim] + lengths[0, rank, dim],
                            begins[1, receiver, dim] + lengths[1, receiver, dim],
                        )
                        shared *= max(end - max(begins[0, rank, dim], begins[1, receiver, dim]), 0)
                    total += shared
            most = max(most, total)
        sent[row] = most
