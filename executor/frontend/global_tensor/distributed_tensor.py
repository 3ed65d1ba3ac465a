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
from strategy.sbp.sbp import B, NdSbp, Sbp, check_layout, format_nd, local_box, may_be_partial, parse_sbp, reductions
from strategy.sbp.tensor import Shape, TensorSpec

Layouts = Sbp | str | Sequence[Sbp | str]
"""One SBP, or one per axis of the placement; as text too, as plans write them: `"S(0)"`."""

Nested = int | Sequence["Nested"]


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


def placement(devices: Nested, space: Space | str = Space.DEVICE) -> Placement:
    """Ranks as a mesh: one, some in a row, rows of equal length as a mesh of two axes, and so on.

    They are meant with the memory of their devices, or `"host"`.

    Raises:
        InputError: there are none, rows differ in length, a rank is negative or stands there twice, or there is no such
            memory.
    """
    if space not in list(Space):
        raise InputError("no such memory", where="placement", got=space, expected=" or ".join(Space))
    try:
        array = np.array([devices] if isinstance(devices, int) else devices)
    except ValueError:
        expected = "as many ranks in each"
        raise InputError("rows of a placement differ in length", got=devices, expected=expected) from None
    if not array.size:
        raise InputError("a placement without ranks", got=devices, expected="one at least", hint="such as [0, 1]")
    if not np.issubdtype(array.dtype, np.integer):
        expected = "numbers of ranks, such as 0, [0, 1] or [[0, 1], [2, 3]]"
        raise InputError("no ranks", where="placement", got=devices, expected=expected)
    return Placement(tuple(array.ravel().tolist()), array.shape, tuple(map(str, range(array.ndim))), Space(space))


def empty_piece(spec: TensorSpec, placement: Placement, layout: NdSbp, rank: int) -> Any:
    """Room for what a rank holds of a tensor."""
    box = local_box(spec.shape, layout, placement.mesh, placement.coords(rank))
    return piece_of(np, spec, box)


def full_layout(sbp: Layouts, mesh: Shape) -> NdSbp:
    """One SBP per axis, along which one alone is repeated.

    Raises:
        SbpError: a text is no SBP.
    """
    given = (sbp,) * len(mesh) if isinstance(sbp, Sbp | str) else tuple(sbp)
    return tuple(one if isinstance(one, Sbp) else parse_sbp(one) for one in given)


def whole_alone(layout: NdSbp, mesh: Shape) -> NdSbp:
    """A layout in which a tensor is whole along axes of one rank, where there is nothing to lay out."""
    if len(layout) != len(mesh):
        return layout
    return tuple(B if parts == 1 else one for one, parts in zip(layout, mesh, strict=True))


def legal_layout(spec: TensorSpec, placement: Placement, sbp: Layouts | None) -> NdSbp:
    """One SBP per axis; along an axis of one rank there is nothing to lay out.

    Raises:
        InputError: no layout is given, or one that does not fit.
    """
    if sbp is None:
        raise InputError("a new placement needs a layout", where="to_global", expected="sbp=")
    given = full_layout(sbp, placement.mesh)
    check_layout(spec.shape, given, placement.mesh, where=f"sbp of {spec.dtype}{list(spec.shape)}")
    if not all(may_be_partial(spec, reduce) for reduce in reductions(given)):
        expected = f"B, S, P(max) or P(min) of {spec.dtype}"
        raise SbpError("terms of integers", where="sbp", got=format_nd(given), expected=expected)
    return whole_alone(given, placement.mesh)
