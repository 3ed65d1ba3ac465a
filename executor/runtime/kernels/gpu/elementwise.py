"""Launches of ops on elements: activations, dropout, rotary positions, casts, copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from executor.runtime.kernels.gpu.launch import (
    Argument,
    Launch,
    element_of,
    in_strides,
    per_row,
    rows_and_width,
    struct,
    wide,
)
from strategy.graph.ops.base import Array, Call, float_attr, floats_attr, int_attr
from strategy.graph.ops.dropout import drop_below
from strategy.graph.ops.rotary import turns
from strategy.graph.splitmix import counter_steps, mix
from strategy.sbp.tensor import Box, DType

Launches = tuple[Launch, ...]
Make = Callable[..., Launches]

LEADING_DIMS = 7
"""Dims before the last that dropout's kernel has room for."""


def gelu(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each(gelu, call)


def gelu_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each(gelu_grad, call)


def gelu_exact(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each(gelu_exact, call)


def gelu_exact_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each(gelu_exact_grad, call)


def silu(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each(silu, call)


def silu_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    return _each(silu_grad, call)


def log(call: Call) -> Launches:
    """See `strategy.graph.ops.unary`."""
    arrays = (*call.inputs, *call.outputs)
    return (_over("logarithm", element_of(arrays[0]), arrays, arrays, ()),)


def bounded_swiglu(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`."""
    return _each(bounded_swiglu, call, np.float32(float_attr(call.attrs, "limit")))


def bounded_swiglu_dgate(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`."""
    return _each(bounded_swiglu_dgate, call, np.float32(float_attr(call.attrs, "limit")))


def bounded_swiglu_dup(call: Call) -> Launches:
    """See `strategy.graph.ops.bounded_swiglu`."""
    return _each(bounded_swiglu_dup, call, np.float32(float_attr(call.attrs, "limit")))


def _each(make: Make, call: Call, *figures: np.generic) -> Launches:
    """The kernel of a function's own name over all elements."""
    arrays = (*call.inputs, *call.outputs)
    return (_over(make.__name__, element_of(arrays[0]), arrays, arrays, figures),)


def _over(
    kernel: str,
    element: DType,
    arguments: tuple[Argument, ...],
    arrays: tuple[Array, ...],
    figures: tuple[np.generic, ...],
) -> Launch:
    """A kernel over all elements of `arrays`."""
    size = arrays[0].size
    return Launch(kernel, element, in_strides(size, element), (*arguments, *figures, np.int64(size), wide(arrays)))


def swiglu(call: Call) -> Launches:
    """See `strategy.graph.ops.swiglu`."""
    return _each(swiglu, call)


def swiglu_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.swiglu`."""
    return _each(swiglu_grad, call)


def dropout(call: Call) -> Launches | None:
    """See `strategy.graph.ops.dropout`."""
    return _dropped(call, None)


def add_dropped(call: Call) -> Launches | None:
    """See `strategy.graph.ops.dropout`; rounded once."""
    return _dropped(call, call.inputs[1])


def _dropped(call: Call, residual: Array | None) -> Launches | None:
    """None for more dims than there is room for."""
    x, (out,), box = call.inputs[0], call.outputs, call.input_boxes[0]
    if not 0 < len(box) <= LEADING_DIMS + 1:
        return None
    rows, width = rows_and_width(x.shape)
    rate = float_attr(call.attrs, "rate")
    key, threshold = partial(_key, int_attr(call.attrs, "seed")), np.uint64(drop_below(rate))
    before = (x, residual, out, np.int64(width), _piece(box))
    arguments = (*before, key(call.number), threshold, np.float32(1.0 / (1.0 - rate)), wide((x, residual, out), width))
    return (Launch(dropout.__name__, element_of(x), per_row(rows), arguments, ((len(before), key),)),)


def _key(seed: int, act: int) -> np.uint64:
    """The state of the words of one act: seed and act taken in."""
    z = np.full(1, seed, np.uint64)
    mix(z, z.copy(), np)
    z += counter_steps(act, act + 1, np)
    mix(z, z.copy(), np)
    return np.uint64(z[0])


def _piece(box: Box) -> np.void:
    *leading, (column, _) = box
    room = [0] * (LEADING_DIMS - len(leading))
    begins, sizes = [begin for begin, _ in leading], [end - begin for begin, end in leading]
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    return struct([len(leading), *begins, *room, *sizes, *room, *strides, *room, column])


def rotary(call: Call) -> Launches | None:
    """See `strategy.graph.ops.rotary`; cosines and sines are made once, in double precision.

    None for more elements than its kernel counts.
    """
    (x,), (y,) = call.inputs, call.outputs
    _, length, heads, width = x.shape
    if x.size >= 2**31:
        return None

    def make() -> Array:
        return call.xp.stack(turns(call, width)).astype("float32").reshape(2, length, -1)

    angles = len(floats_attr(call.attrs, "frequencies")) if "frequencies" in call.attrs else width // 2
    table = call.workspace.constant("turns", (2, length, angles), "float32", make)
    element = element_of(x)
    fits = np.int32(wide((x, y), width) and wide((x,), angles) and wide((table,)))
    figures = map(np.int32, (length, heads, width, angles, x.size))
    return (Launch(rotary.__name__, element, in_strides(x.size // 2, element), (x, table, y, *figures, fits)),)


def cast(call: Call) -> Launches | None:
    """Between float and a half; None for others."""
    return scaled_cast(call.inputs[0], None, call.outputs[0])


def scaled_cast(x: Array, scale: Array | None, out: Array) -> Launches | None:
    """scale x in another dtype; None between dtypes that no kernel casts."""
    source, target = element_of(x), element_of(out)
    if source.is_half and target == DType.FLOAT32:
        return (_over("widen_to_float", source, (x, scale, out), (x, out), ()),)
    if source == DType.FLOAT32 and target.is_half:
        return (_over("narrow_float", target, (x, scale, out), (x, out), ()),)
    return None


def reshape(call: Call) -> Launches:
    """See `strategy.graph.ops.shape`; whatever is no half is copied as float32, to the bit."""
    x, out = call.inputs[0], call.outputs[0]
    if not element_of(x).is_half:
        x, out = (array.reshape(-1).view("float32") for array in (x, out))
    return (_over("copy_elements", element_of(x), (x, out), (x, out), ()),)
