"""Rows: what a rank holds of a ragged tensor, packed into memory for as many as there is room for.

A ragged tensor is logically [experts, *tokens, width], and row (e, t) is there if token t was sent to expert e. A piece
holds, of the rows in its box, those that are there, by expert and then by token:

    how many | the cell of each, ascending | the rows, one after another | room up to `TensorSpec.most_rows`

A cell is the number of (e, t) among all (expert, token) pairs of the whole tensor, so that pieces of any box compare.
A row that is not there counts as zero: terms of a partial tensor may lack rows that other terms have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strategy.base.errors import InternalError, RunError
from strategy.sbp.tensor import INDEX_NBYTES, Box, Shape, TensorSpec, box_shape

Array = Any
"""A NumPy or CuPy array."""
ArrayModule = Any
"""`numpy` or `cupy`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A view of memory as the rows of a piece.

    Attributes:
        xp: the array module of the memory.
        raw: `spec.nbytes` bytes.
        spec: of the piece.
        box: the piece.
    """

    xp: ArrayModule
    raw: Array
    spec: TensorSpec
    box: Box
    _index: Array = field(init=False, repr=False)
    _data: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        most = self.spec.most_rows
        data = INDEX_NBYTES * (1 + most)
        object.__setattr__(self, "_index", self.raw[:data].view("int64"))
        object.__setattr__(self, "_data", self.raw[data:].view(self.spec.dtype.numpy).reshape(most, -1))

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._index[0])

    @property
    def cells(self) -> Array:
        """The cell of every row, ascending."""
        return self._index[1 : 1 + self.count]

    @property
    def rows(self) -> Array:
        """The rows, [count, width of the piece]."""
        return self._data[: self.count]

    @property
    def index(self) -> Array:
        """Memory of their number and cells, [1 + rows that there is room for]."""
        return self._index

    @property
    def room(self) -> Array:
        """Memory of the rows, [rows that there is room for, width of the piece]."""
        return self._data

    @property
    def shape(self) -> Shape:
        """Of the piece, were all rows there."""
        return box_shape(self.box)

    @property
    def dtype(self) -> Any:
        """Of the rows."""
        return self._data.dtype

    @property
    def nbytes(self) -> int:
        """Of the memory."""
        return self.spec.nbytes

    def hold(self, cells: Array) -> Array:
        """Let the piece have the rows of these cells, ascending; gives the rows, which are still to be written.

        Raises:
            RunError: they are more than there is room for.
        """
        check_room(len(cells), self.spec)
        self._index[0] = len(cells)
        self._index[1 : 1 + len(cells)] = cells
        return self._data[: len(cells)]

    def put(self, parts: Sequence[tuple[Array, Array, tuple[int, int]]]) -> None:
        """Hold the sum of (cells, rows, [begin, end) of the width in logical indices), of halves rounded once."""
        xp, origin = self.xp, self.box[-1][0]
        cells = xp.unique(xp.concatenate([self._index[:0], *(part[0] for part in parts)]))
        total = xp.zeros((len(cells), self.shape[-1]), self.spec.dtype.wide.numpy)
        for found, rows, (begin, end) in parts:
            place = xp.searchsorted(cells, found), slice(begin - origin, end - origin)
            # Codes have no terms that add up, and a scale in powers of two has no zero to start from.
            total[place] = rows if self.spec.dtype.is_code else total[place] + rows
        self.hold(cells)[...] = total

    def expert_bounds(self) -> Array:
        """Where the rows of each expert of the box begin, and where those of the last one end."""
        (first, last), tokens = self.box[0], math.prod(self.logical[1:])
        return self.xp.searchsorted(self.cells, self.xp.arange(first, last + 1) * tokens)

    @property
    def logical(self) -> Shape:
        """Sizes of the dims that cells are counted in."""
        return self.spec.rows.dims

    def inside(self, box: Box) -> Array:
        """Positions of the rows that lie in a box."""
        return inside(self.xp, self.cells, self.logical, box)

    def find(self, cells: Array) -> tuple[Array, Array]:
        """Of cells in any order: positions among them of those that are there, and the rows where they are."""
        xp, own = self.xp, self.cells
        if not len(own):
            return cells[:0], cells[:0]
        place = xp.minimum(xp.searchsorted(own, cells), len(own) - 1)
        (hits,) = xp.nonzero(own[place] == cells)
        return hits, place[hits]

    def dense(self) -> Array:
        """The piece written out, zero where no row is."""
        xp = self.xp
        out = xp.zeros(self.shape, self.dtype)
        place = xp.unravel_index(self.cells, self.logical)
        out[tuple(at - begin for at, (begin, _) in zip(place, self.box, strict=False))] = self.rows
        return out

    def hold_dense(self, piece: Array) -> None:
        """Hold those rows of a piece that is written out that are not all zero."""
        xp = self.xp
        local = xp.nonzero((piece != 0).any(axis=-1))
        place = tuple(at + begin for at, (begin, _) in zip(local, self.box, strict=False))
        self.hold(xp.ravel_multi_index(place, self.logical))[...] = piece[local]


def check_room(count: int, spec: TensorSpec) -> None:
    """Whether a piece has room for so many rows.

    Raises:
        RunError: it has not.
        InternalError: it has room for the worst case.
    """
    if count <= spec.most_rows:
        return
    if not spec.rows.room:
        raise InternalError(f"{count} rows in a piece that holds {spec.most_rows}: {spec}")
    raise RunError(
        f"{count} rows are for {spec.shape[0]} of {spec.rows.dims[0]} experts, and there is room for {spec.most_rows}:"
        f" {spec.rows.room:g} times an even share. Search with --training expert_room={2 * spec.rows.room:g}"
        " (0: room for the worst case), or balance the router"
    )


def inside(xp: ArrayModule, cells: Array, dims: Shape, box: Box) -> Array:
    """Positions of the cells that lie in a box, whose last dim, the width, does not matter."""
    chosen = xp.ones(len(cells), bool)
    for at, (begin, end) in zip(xp.unravel_index(cells, dims), box, strict=False):
        chosen &= (at >= begin) & (at < end)
    return xp.nonzero(chosen)[0]


def piece_of(xp: ArrayModule, spec: TensorSpec, box: Box, raw: Array | None = None) -> Array:
    """An array, or `Rows`, for the piece `box` of a tensor; in the memory `raw`, or in new one, empty so far."""
    local = spec.piece(box_shape(box))
    if raw is None:
        raw = xp.zeros(local.nbytes, "uint8")
    if local.ragged is not None:
        return Rows(xp, raw, local, box)
    return raw.view(local.dtype.numpy).reshape(local.shape)
