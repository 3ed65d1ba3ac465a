"""Launches of layer norm and RMS norm, and of their gradients."""

from __future__ import annotations

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, blocks_for, element_of, per_row, rows_and_width, wide
from executor.runtime.kernels.gpu.program import BLOCK, PACK_NBYTES, WARP
from executor.runtime.kernels.gpu.reductions import column_grid, sum_terms
from strategy.graph.ops.base import Array, Call
from strategy.graph.ops.norm import epsilon_of

Launches = tuple[Launch, ...]

HELD = 2
"""Packs of a row that a thread of a gradient's kernel holds."""
_BLOCKS = 256
"""Of such a kernel, where there are rows enough: fixed, so that a sum has one order on every device."""
_LEAST_TURNS = 4
"""Rows, one after the other, that such a block is worth while for."""


def layer_norm(call: Call) -> Launches:
    """See `strategy.graph.ops.norm`."""
    (x, gain, bias), (y, mean, rstd) = call.inputs, call.outputs
    rows, width = rows_and_width(x.shape)
    epsilon = np.float32(epsilon_of(call.attrs))
    arguments = (x, gain, bias, y, mean, rstd, np.int64(width), epsilon, wide((x, gain, bias, y), width))
    return (Launch(layer_norm.__name__, element_of(x), per_row(rows), arguments),)


def layer_norm_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.norm`."""
    (x, gain, mean, rstd, dy), (dx, dgain, dbias) = call.inputs, call.outputs
    return _grad(layer_norm.__name__, call, (x, gain, mean, rstd, dy, dx), (dgain, dbias))


def rms_norm(call: Call) -> Launches:
    """See `strategy.graph.ops.norm`."""
    (x, gain), (y, rstd) = call.inputs, call.outputs
    rows, width = rows_and_width(x.shape)
    arguments = (x, gain, y, rstd, np.int64(width), np.float32(epsilon_of(call.attrs)), wide((x, gain, y), width))
    return (Launch(rms_norm.__name__, element_of(x), per_row(rows), arguments),)


def rms_norm_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.norm`."""
    (x, gain, rstd, dy), (dx, dgain) = call.inputs, call.outputs
    return _grad(rms_norm.__name__, call, (x, gain, rstd, dy, dx), (dgain,))


def _grad(norm: str, call: Call, arrays: tuple[Array, ...], sums: tuple[Array, ...]) -> Launches:
    """dx and what chunks of rows add to the sums, at once where threads hold a row, else apart; and the sums."""
    x, gain, *statistics, dy, dx = arrays
    rows, width = rows_and_width(x.shape)
    fits, element = wide((x, gain, dy, dx), width), element_of(x)
    team = team_of(width * x.dtype.itemsize // PACK_NBYTES)
    if fits and team <= BLOCK:
        at_a_time = BLOCK // team
        chunk = at_a_time * max(blocks_for(rows, at_a_time * _BLOCKS), _LEAST_TURNS)
        chunks = blocks_for(rows, chunk)
        terms = call.workspace.get("terms", (len(sums), chunks, width), "float32")
        figures = (*map(np.int64, (rows, width, chunk)), np.int32(team))
        at_once = Launch(f"{norm}_grad", element, (chunks, 1, 1), (*arrays, terms, *figures))
        return (at_once, sum_terms(terms, sums, chunks))
    by_rows = Launch(f"{norm}_dx", element, per_row(rows), (*arrays, np.int64(width), fits))
    mean, rstd = (None, *statistics)[-2:]
    grid, chunk = column_grid(rows, width, x, fits)
    terms = call.workspace.get("terms", (len(sums), grid[1], width), "float32")
    arguments = (x, mean, rstd, dy, terms, *map(np.int64, (rows, width, chunk)), fits)
    return (by_rows, Launch("norm_columns", element, grid, arguments), sum_terms(terms, sums, grid[1]))


def team_of(packs: int) -> int:
    """Threads that hold a row of so many packs: a power of two, of warps."""
    team = WARP
    while team * HELD < packs:
        team *= 2
    return team
