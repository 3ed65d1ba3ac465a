"""Launches of sums and largest figures over the first or the last dims, and of sums of squares."""

from __future__ import annotations

import math

import numpy as np

from executor.runtime.kernels.gpu.launch import Argument, Launch, blocks_for, element_of, per_row, wide
from executor.runtime.kernels.gpu.program import ELEMENTS, PACK_NBYTES, WARP, WARPS
from strategy.graph.ops.base import Array, Call, ints_attr

Launches = tuple[Launch, ...]

_BLOCKS = 2048
"""Of the sums of columns, where there are rows enough: fixed, so that a sum has one order on every device."""
_LEAST_CHUNK = 4 * WARPS
"""Rows whose terms of a column one block adds up, if there are so many."""
_MOST_ALONE = 2**16
"""Elements that one block adds up by itself where all dims go."""
_SQUARES_PER_BLOCK = 4096
"""So that the gradient of a bias is one launch."""
_MOST_SQUARE_BLOCKS = 1024


def reduce_sum(call: Call) -> Launches | None:
    """See `strategy.graph.ops.reduction`; None for integers, dims in the middle, and many elements in one sum."""
    (x,), (out,) = call.inputs, call.outputs
    if element_of(x) not in ELEMENTS:
        return None
    kept, gone, going = _places(call)
    if kept > 1 and going == sorted(going, reverse=True):
        return _column_sums(call, x, out, gone, kept)
    return _by_rows("row_totals", x, out, gone) if _are_rows(kept, gone, going) else None


def reduce_max(call: Call) -> Launches | None:
    """See `strategy.graph.ops.reduction`; None for integers, dims that are not the last, and many elements at once."""
    (x,), (out,) = call.inputs, call.outputs
    kept, gone, going = _places(call)
    return _by_rows("row_max", x, out, gone) if element_of(x) in ELEMENTS and _are_rows(kept, gone, going) else None


def _places(call: Call) -> tuple[int, int, list[bool]]:
    """Elements that stay, elements that go for each of them, and of every dim of several whether it goes."""
    shape, axes = call.inputs[0].shape, ints_attr(call.attrs, "axes")
    gone = math.prod(shape[dim] for dim in axes)
    return math.prod(shape) // gone, gone, [dim in axes for dim, size in enumerate(shape) if size > 1]


def _are_rows(kept: int, gone: int, going: list[bool]) -> bool:
    """Whether the dims that go are the last; where none stay, not too many for one block."""
    return going == sorted(going) and (kept > 1 or gone <= _MOST_ALONE)


def _by_rows(kernel: str, x: Array, out: Array, width: int) -> Launches:
    return (Launch(kernel, element_of(x), per_row(out.size), (x, out, np.int64(width), wide((x,)))),)


def _column_sums(call: Call, x: Array, out: Array, rows: int, width: int) -> Launches:
    """In two steps where there are several chunks of rows."""
    fits = wide((x,), width)
    grid, chunk = column_grid(rows, width, x, fits)
    chunks = grid[1]
    terms = call.workspace.get("terms", (chunks, width), "float32") if chunks > 1 else None
    figures = map(np.int64, (rows, width, chunk))
    arguments: tuple[Argument, ...] = (x, terms, None if chunks > 1 else out, *figures, fits)
    by_chunks = Launch("column_sums", element_of(x), grid, arguments)
    return (by_chunks,) if terms is None else (by_chunks, sum_terms(terms, (out,), chunks))


def column_grid(rows: int, width: int, x: Array, fits: np.int32) -> tuple[tuple[int, int, int], int]:
    """The grid of blocks by stretches of columns and chunks of rows, and rows of a chunk: many blocks, large chunks."""
    stretches = blocks_for(width, WARP * (PACK_NBYTES // x.dtype.itemsize if fits else 1))
    chunk = max(blocks_for(rows, max(_BLOCKS // stretches, 1)), min(rows, _LEAST_CHUNK))
    return (stretches, blocks_for(rows, chunk), 1), chunk


def sum_terms(terms: Array, sums: tuple[Array, ...], count: int) -> Launch:
    """The sums of terms[sums, count, width], one or two, over their dim in the middle, in order."""
    second, width = sums[1] if len(sums) > 1 else None, sums[0].size
    arguments = (terms, sums[0], second, np.int64(count), np.int64(width))
    return Launch(sum_terms.__name__, element_of(sums[0]), (blocks_for(width, WARP), len(sums), 1), arguments)


def square_sum(call: Call) -> Launches:
    """The squares that every block adds up, and their sum; one block's are the sum."""
    (x,), (out,) = call.inputs, call.outputs
    blocks = min(blocks_for(x.size, _SQUARES_PER_BLOCK), _MOST_SQUARE_BLOCKS)
    terms = call.workspace.get("terms", (blocks,), "float32") if blocks > 1 else None
    arguments = (x, terms, None if blocks > 1 else out, np.int64(x.size), wide((x,)))
    of_blocks = Launch(square_sum.__name__, element_of(x), (blocks, 1, 1), arguments)
    if terms is None:
        return (of_blocks,)
    return (of_blocks, Launch("total_terms", element_of(out), (1, 1, 1), (terms, out, np.int64(blocks))))
