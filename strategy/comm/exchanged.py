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
    for row in range(sent.size):
        copies = wanted_copies = 1
        for axis in range(mesh.size):
            copies *= mesh[axis] if dims[row, 0, axis] < 0 else 1
            wanted_copies *= mesh[axis] if dims[row, 1, axis] < 0 else 1
        # What ranks have before comes last: `held` is of that.
        lacks = _cut(blocks[row], mesh, dims[row, 1], shifts[row, 1], pieces[:, 1], held)
        lacks = _cut(blocks[row], mesh, dims[row, 0], shifts[row, 0], pieces[:, 0], held) or lacks
        if lacks:
            sent[row] = LACKING
            continue
        for rank in range(held.shape[1]):
            total = 0
            if copies == 1:  # all that it has is wanted, and its own part of that stays
                whole = 1
                for dim in range(pieces.shape[3]):
                    whole *= pieces[1, 0, rank, dim]
                total = whole * wanted_copies - _shared(pieces, rank, rank)
            else:
                for receiver in range(held[1, rank], held.shape[1], copies):
                    if held[0, receiver] != held[0, rank]:
                        total += _shared(pieces, rank, receiver)
            sent[row] = max(sent[row], total)


@in_place
def _cut(block: Ints, mesh: Ints, dims: Ints, shifts: Ints, pieces: Ints, held: Ints) -> bool:
    """Write what every rank has of a block, [begins and lengths, ranks, dims]; says whether some have nothing."""
    lacks = False
    for rank in range(held.shape[1]):
        piece, copy, stride = 0, 0, held.shape[1]
        for dim in range(block.size):
            pieces[0, rank, dim], pieces[1, rank, dim] = 0, block[dim]
        for axis in range(mesh.size):
            parts, dim = mesh[axis], dims[axis]
            stride //= parts
            place = rank // stride % parts
            if dim < 0:
                copy = copy * parts + place
                continue
            piece = piece * parts + place
            place = (place + shifts[axis]) % parts
            least, longer = pieces[1, rank, dim] // parts, pieces[1, rank, dim] % parts
            pieces[0, rank, dim] += place * least + min(place, longer)
            pieces[1, rank, dim] = least + (1 if place < longer else 0)
            lacks = lacks or pieces[1, rank, dim] == 0
        held[0, rank], held[1, rank] = piece, copy
    return lacks


@in_place
def _shared(pieces: Ints, sender: int, receiver: int) -> int:
    """Elements of what one rank has before that another has after."""
    found = 1
    for dim in range(pieces.shape[3]):
        begin, wanted = pieces[0, 0, sender, dim], pieces[0, 1, receiver, dim]
        end, wanted_end = begin + pieces[1, 0, sender, dim], wanted + pieces[1, 1, receiver, dim]
        found *= max(min(end, wanted_end) - max(begin, wanted), 0)
    return found
