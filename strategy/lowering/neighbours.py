"""Neighbours: blocks that a collective takes as one lie in a row, each right behind the one before.

    in the arena    | a | b   | c |        what `bucket` reads: one span, in use from when a is written
                    ^ a cache line         until the collective has read all three

Within a row blocks lie at multiples of their dtype's size, so that what is moved are their bytes and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategy.lowering.arena import Lives
from strategy.lowering.occupancy import Block, Occupancy, Occupant


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourRow:
    """Blocks in one piece of memory: each with its place there, how many bytes they are, and when they are in use."""

    places: tuple[tuple[Block, int], ...]
    nbytes: int
    lives: Lives


def in_rows(occupancy: Occupancy, occupants: Sequence[Occupant]) -> list[NeighbourRow]:
    """Occupants of one memory of a rank, those in a row together where its first is."""
    row_of = occupancy.row_of
    by_register = {occupant.blocks[0][0]: occupant for occupant in occupants if occupant.blocks[0][0] in row_of}
    found, placed = [], set[int]()
    for occupant in occupants:
        register = occupant.blocks[0][0]
        members = [by_register[index] for index in row_of[register]] if register in row_of else [occupant]
        if register not in placed:
            found.append(_row(occupancy, members))
        placed.update(row_of.get(register, ()))
    return found


def _row(occupancy: Occupancy, members: Sequence[Occupant]) -> NeighbourRow:
    if len(members) == 1:
        (alone,) = members
        return NeighbourRow(
            tuple([(block, 0) for block in alone.blocks]), occupancy.block_nbytes[alone.blocks[0][0]], alone.lives
        )
    places, at = [], 0
    for member in members:
        places += [(block, at) for block in member.blocks]
        at += occupancy.block_nbytes[member.blocks[0][0]]
    return NeighbourRow(tuple(places), at, _union([one.lives for one in members]))


def _union(every: Sequence[Lives]) -> Lives:
    """The intervals in which any of several is in use."""
    found: list[list[int]] = []
    for begin, end in sorted(map(tuple, np.concatenate(every).tolist())):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return np.array(found, np.int64).reshape(-1, 2)
