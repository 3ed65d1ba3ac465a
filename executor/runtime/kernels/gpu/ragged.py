"""Launches of ops on ragged rows: grids over all the room that a block has, kernels that read the count on the device.

Of one act all operands have the same rows; whoever binds it has seen to that.
"""

from __future__ import annotations

import math

import numpy as np

from executor.runtime.kernels.gpu.arithmetic import TERMS
from executor.runtime.kernels.gpu.launch import (
    Addresses,
    Argument,
    Launch,
    address_of,
    blocks_for,
    element_of,
    in_strides,
    struct,
    wide,
)
from executor.runtime.kernels.gpu.program import BLOCK, PACK_NBYTES, WARP
from strategy.graph.ops.base import Array, Call, float_attr, int_attr
from strategy.sbp.ragged import Rows

Launches = tuple[Launch, ...]

_ROW_NBYTES = PACK_NBYTES // 2
"""Of a vector load where each row is looked at by itself: rows lie at multiples of that, whatever their number."""
_CHUNK = 4 * BLOCK
"""Tokens of which one block counts the choices."""
_SIDE = 128
"""Rows and columns of a tile of a product."""
_MOST_ALONG_Y = 65535


def gelu(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each("gelu_rows", call)


def gelu_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each("gelu_grad_rows", call)


def silu(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each("silu_rows", call)


def silu_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each("silu_grad_rows", call)


def swiglu(call: Call) -> Launches:
    """See `strategy.graph.ops.swiglu`."""
    return _each("swiglu_rows", call)


def swiglu_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.swiglu`."""
    return _each("swiglu_grad_rows", call)


def bounded_swiglu(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`."""
    return _bounded("bounded_swiglu_rows", call)


def bounded_swiglu_dgate(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`."""
    return _bounded("bounded_swiglu_dgate_rows", call)


def bounded_swiglu_dup(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`."""
    return _bounded("bounded_swiglu_dup_rows", call)


def _bounded(kernel: str, call: Call) -> Launches:
    return _each(kernel, call, np.float32(float_attr(call.attrs, "limit")))


def mul(call: Call) -> Launches:
    """See `strategy.graph.ops.binary`."""
    return _each("mul_rows", call)


def _each(kernel: str, call: Call, *figures: np.generic) -> Launches:
    """A kernel over all elements of the rows."""
    first = call.inputs[0]
    held = [part for rows in call.outputs for part in (rows.index, rows.room)]
    arguments = (first.index, *(rows.room for rows in call.inputs), *held, *figures, *_stretch(call))
    return (Launch(kernel, element_of(first.room), in_strides(first.room.size, element_of(first.room)), arguments),)


def add_n(call: Call) -> Launches | None:
    """See `strategy.graph.ops.linear`; None for more terms than there is room for."""
    first, (out,) = call.inputs[0], call.outputs
    if len(call.inputs) > TERMS:
        return None
    terms, count = Addresses(tuple(rows.room for rows in call.inputs), TERMS), np.int32(len(call.inputs))
    arguments = (first.index, terms, count, out.index, out.room, *_stretch(call))
    return (Launch("add_n_rows", element_of(out.room), in_strides(out.room.size, element_of(out.room)), arguments),)


def _stretch(call: Call) -> tuple[np.generic, ...]:
    """Elements of a row, those before a multiple of a vector's bytes, and whether these are as many in all operands."""
    rooms = [rows.room for rows in (*call.inputs, *call.outputs)]
    ahead = {-address_of(room) % PACK_NBYTES for room in rooms}
    lead = ahead.pop() // rooms[0].dtype.itemsize
    return np.int64(rooms[0].shape[-1]), np.int64(lead), np.int32(not ahead)


def dropless_dispatch(call: Call) -> Launches | None:
    """See `strategy.graph.ops.dropless`: rows are counted, placed, written.

    None for more experts than a grid takes.
    """
    (x, chosen, *weights), (out,) = call.inputs, call.outputs
    tokens, (experts, *_) = math.prod(chosen.shape[:2]), out.shape
    chunks, width = blocks_for(tokens, _CHUNK), out.shape[-1]
    if experts > _MOST_ALONG_Y:
        return None
    counts = call.workspace.get("counts", (experts * chunks + 1,), "int64")
    element, count, most = element_of(x), np.int64(experts * chunks), np.int64(len(out.room))
    chosen_by = (*_integers(chosen), np.int64(tokens), np.int32(chosen.shape[2]), _pieces(out))
    fits = wide((x, out.room), width, _ROW_NBYTES)
    read = (out.index, x, *_integers(chosen), np.int32(chosen.shape[2]), weights[0] if weights else None, _pieces(out))
    return (
        Launch("count_choices", element, (chunks, experts, 1), (*chosen_by, counts)),
        Launch("place_choices", element, (1, 1, 1), (counts, count, most, out.index)),
        Launch("write_cells", element, (chunks, experts, 1), (*chosen_by, counts, most, out.index)),
        Launch(
            "dispatch_rows",
            element,
            (len(out.room), _stretches(width, x, fits), 1),
            (*read, counts, count, out.room, np.int64(width), fits),
        ),
    )


def dropless_combine(call: Call) -> Launches:
    """See `strategy.graph.ops.dropless`: every token finds its rows by their cells."""
    (rows, chosen, *weights), (out,) = call.inputs, call.outputs
    tokens, width = math.prod(chosen.shape[:2]), out.shape[-1]
    fits = wide((rows.room, out), width, _ROW_NBYTES)
    read = (rows.index, rows.room, *_integers(chosen), np.int32(chosen.shape[2]), weights[0] if weights else None)
    grid = (tokens, _stretches(width, out, fits), 1)
    return (Launch("combine_rows", element_of(out), grid, (*read, _pieces(rows), out, np.int64(width), fits)),)


def dropless_inner(call: Call) -> Launches:
    """See `strategy.graph.ops.dropless`: a block for every choice."""
    (rows, chosen, x), (out,) = call.inputs, call.outputs
    width = x.shape[-1]
    fits = wide((rows.room, x), width, _ROW_NBYTES)
    grid = (math.prod(chosen.shape[:2]), chosen.shape[2], 1)
    read = (rows.index, rows.room, *_integers(chosen), x)
    return (Launch("inner_rows", element_of(x), grid, (*read, _pieces(rows), out, np.int64(width), fits)),)


def _integers(array: Array) -> tuple[Argument, np.int32]:
    return array, np.int32(array.dtype.itemsize)


def _pieces(rows: Rows) -> np.void:
    """Which experts, groups and tokens rows are of, and how many of the last two there are in all."""
    (expert, behind), (group, _), (token, last), _ = rows.box
    _, groups, tokens = rows.logical
    return struct([expert, behind - expert, group, token, last - token, groups, tokens])


def _stretches(width: int, array: Array, fits: np.int32) -> int:
    """Blocks along a row."""
    return blocks_for(width, BLOCK * (_ROW_NBYTES // array.dtype.itemsize if fits else 1))


def grouped_matmul(call: Call) -> Launches | None:
    """See `strategy.graph.ops.grouped_matmul`; None for more rows than a grid has tiles for."""
    (rows, w), (out,) = call.inputs, call.outputs
    transposed = int_attr(call.attrs, "transpose")
    experts, inner, outer = len(w), rows.shape[-1], out.shape[-1]
    tiles = blocks_for(len(rows.room), _SIDE) + experts  # of every expert the last one may be of few rows
    if tiles > _MOST_ALONG_Y:
        return None
    find, bounds = _expert_bounds(call, rows)
    fits = _fit((rows.room, w), inner if transposed else math.gcd(inner, outer))
    operands = (bounds, np.int32(experts), rows.index, rows.room, w, out.index, out.room)
    kernel, grid = "grouped_product_nt" if transposed else "grouped_product", (blocks_for(outer, _SIDE), tiles, 1)
    return (find, Launch(kernel, element_of(w), grid, (*operands, np.int64(inner), np.int64(outer), fits)))


def grouped_matmul_tn(call: Call) -> Launches | None:
    """See `strategy.graph.ops.grouped_matmul`; None for more experts or columns than a grid takes."""
    (rows, dy), (out,) = call.inputs, call.outputs
    experts, inner, outer = out.shape
    grid = (blocks_for(outer, _SIDE), blocks_for(inner, _SIDE), experts)
    if max(grid[1:]) > _MOST_ALONG_Y:
        return None
    find, bounds = _expert_bounds(call, rows)
    fits = _fit((rows.room, dy.room), math.gcd(inner, outer))
    arguments = (bounds, rows.room, dy.room, out, np.int64(inner), np.int64(outer), fits)
    return (find, Launch("grouped_product_tn", element_of(out), grid, arguments))


def add_by_expert(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`: every row finds its expert by its cell."""
    (rows, bias), (out,) = call.inputs, call.outputs
    (first, _), (_, groups, tokens), width = rows.box[0], rows.logical, rows.shape[-1]
    fits = wide((rows.room, bias, out.room), width, _ROW_NBYTES)
    grid = (len(rows.room), _stretches(width, bias, fits), 1)
    figures = (np.int64(first), np.int64(groups * tokens))
    arguments = (rows.index, rows.room, bias, *figures, out.index, out.room, np.int64(width), fits)
    return (Launch("add_by_expert_rows", element_of(bias), grid, arguments),)


def sum_by_expert(call: Call) -> Launches | None:
    """See `strategy.graph.ops.bounded_swiglu`; None for more experts than a grid takes."""
    (rows,), (out,) = call.inputs, call.outputs
    experts, width = out.shape
    if experts > _MOST_ALONG_Y:
        return None
    find, bounds = _expert_bounds(call, rows)
    fits = wide((rows.room,), width, _ROW_NBYTES)
    stretches = blocks_for(width, WARP * (_ROW_NBYTES // out.dtype.itemsize if fits else 1))
    arguments = (bounds, rows.room, out, np.int64(width), fits)
    return (find, Launch("sum_by_expert_rows", element_of(out), (stretches, experts, 1), arguments))


def _expert_bounds(call: Call, rows: Rows) -> tuple[Launch, Array]:
    """What finds out where the rows of each expert begin, and where it leaves that."""
    (first, behind), (_, groups, tokens) = rows.box[0], rows.logical
    bounds = call.workspace.get("bounds", (2 * (behind - first + 1),), "int64")
    figures = (np.int64(first), np.int32(behind - first), np.int64(groups * tokens))
    return Launch("expert_bounds", element_of(rows.room), (1, 1, 1), (rows.index, *figures, bounds)), bounds


def _fit(operands: tuple[Array, ...], run: int) -> np.int32:
    """Whether runs of so many elements are loaded eight bytes at a time."""
    return wide(operands, run, _ROW_NBYTES)
