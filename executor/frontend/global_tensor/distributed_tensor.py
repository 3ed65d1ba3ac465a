"""Distributed tensor: a logical tensor as one rank has it, and the layouts that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.frontend.world import World
from strategy.base.errors import InputError, SbpError
from strategy.sbp.placement import Placement, Space
from strategy.sbp.ragged import piece_of
from strategy.sbp.sbp import B, NdSbp, Sbp, check_layout, format_nd, has_partial, local_box
from strategy.sbp.tensor import Shape, TensorSpec

Layouts = Sbp | Sequence[Sbp]
"""One SBP, or one per axis of the placement."""


@dataclass(frozen=True, slots=True, eq=False)
class DistributedTensor:
    """A logical tensor; `piece` is what this rank holds of it, None where the placement leaves this rank out.

    Pieces are arrays, or `Rows` of a ragged tensor. `is_state`: graphs that hold it write to the piece; whoever reads
    it waits for their calls.
    """

    spec: TensorSpec
    placement: Placement
    sbp: NdSbp
    piece: Any
    world: World
    is_state: bool = False

    def settle(self) -> None:
        """Wait until nobody writes to it."""
        if self.is_state:
            self.world.calls.settle()

    def __str__(self) -> str:
        spec = self.spec
        return f"{spec.dtype}{list(spec.shape)} {', '.join(map(str, self.sbp))} on {self.placement}"


def placement(devices: Sequence[int] | Sequence[Sequence[int]], space: Space | str = Space.DEVICE) -> Placement:
    """Ranks in a row, or in rows of equal length as a mesh of two axes; in the memory of their devices or `"host"`.

    Raises:
        InputError: rows differ in length, a rank is negative or stands there twice, there is no such memory.
    """
    if space not in list(Space):
        raise InputError("no such memory", where="placement", got=space, expected=" or ".join(Space))
    rows = [row if isinstance(row, Sequence) else (row,) for row in devices]
    if len({len(row) for row in rows}) != 1:
        raise InputError("rows of a placement differ in length", got=rows, expected="as many ranks in each")
    ranks = tuple(rank for row in rows for rank in row)
    if isinstance(devices[0], Sequence):
        return Placement(ranks, (len(rows), len(rows[0])), ("0", "1"), Space(space))
    return Placement(ranks, (len(ranks),), ("0",), Space(space))


def empty_piece(spec: TensorSpec, placement: Placement, layout: NdSbp, rank: int) -> Any:
    """Room for what a rank holds of a tensor."""
    box = local_box(spec.shape, layout, placement.mesh, placement.coords(rank))
    return piece_of(np, spec, box)


def full_layout(sbp: Layouts, mesh: Shape) -> NdSbp:
    """One SBP per axis, along which one alone is repeated."""
    return (sbp,) * len(mesh) if isinstance(sbp, Sbp) else tuple(sbp)


def legal_layout(spec: TensorSpec, placement: Placement, sbp: Layouts | None) -> NdSbp:
    """One SBP per axis; along an axis of one rank there is nothing to lay out.

    Raises:
        InputError: no layout is given, or one that does not fit.
    """
    if sbp is None:
        raise InputError("a new placement needs a layout", where="to_global", expected="sbp=")
    given = full_layout(sbp, placement.mesh)
    check_layout(spec.shape, given, placement.mesh, where=f"sbp of {spec.dtype}{list(spec.shape)}")
    if has_partial(given) and not spec.dtype.is_float:
        raise SbpError("terms of integers", where="sbp", got=format_nd(given), expected=f"B or S of {spec.dtype}")
    return tuple(B if parts == 1 else one for one, parts in zip(given, placement.mesh, strict=True))
