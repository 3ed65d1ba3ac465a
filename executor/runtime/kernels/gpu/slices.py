"""Launches of `gather` and its adjoint."""

from __future__ import annotations

import math

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, blocks_for, element_of, in_strides, wide
from executor.runtime.kernels.gpu.program import BLOCK, PACK_NBYTES
from strategy.graph.ops.base import Array, Call, int_attr

_MOST_ALONG_Z = 65535


def gather(call: Call) -> tuple[Launch, ...] | None:
    """See `strategy.graph.ops.gather`; None where the gathered axis is behind more slices than a grid has room for."""
    (x, indices), (out,) = call.inputs, call.outputs
    axis = int_attr(call.attrs, "axis")
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if before > _MOST_ALONG_Z:
        return None
    begin, end = call.input_boxes[0][axis]
    fits = wide((x, out), after)
    grid = (indices.size, _stretches(x, after, fits), before)
    figures = (np.int64(begin), np.int64(end - begin), np.int64(after), fits)
    arguments = (x, indices, np.int32(indices.dtype.itemsize), out, *figures)
    return (Launch(gather.__name__, element_of(x), grid, arguments),)


def gather_grad(call: Call) -> tuple[Launch, ...] | None:
    """Zeros, and the slices added up where they came from, in the order of their places."""
    (indices, dy), (out,) = call.inputs, call.outputs
    axis = int_attr(call.attrs, "axis")
    before, after = math.prod(out.shape[:axis]), math.prod(out.shape[axis + 1 :])
    if before > _MOST_ALONG_Z:
        return None
    begin, end = call.output_boxes[0][axis]
    fits = np.int32(wide((dy, out), after) and wide((indices,)))
    grid = (indices.size, _stretches(dy, after, fits), before)
    figures = (np.int64(begin), np.int64(end - begin), np.int64(after), fits)
    arguments = (indices, np.int32(indices.dtype.itemsize), dy, out, *figures)
    element = element_of(dy)
    zeros = Launch("zero", element, in_strides(out.size, element), (out, wide((out,)), np.int64(out.size)))
    return (zeros, Launch("gather_add", element, grid, arguments))


def _stretches(array: Array, after: int, fits: np.int32) -> int:
    """Blocks along a slice."""
    return blocks_for(after, BLOCK * (PACK_NBYTES // array.dtype.itemsize if fits else 1))
