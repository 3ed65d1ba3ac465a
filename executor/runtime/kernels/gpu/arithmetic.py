"""Launches of sums, differences, products and quotients: of tensors of one shape, and of operands that are spread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from executor.runtime.kernels.gpu.launch import Addresses, Launch, element_of, in_strides, struct, wide
from executor.runtime.kernels.gpu.program import ELEMENTS
from strategy.graph.ops.base import Array, Call
from strategy.sbp.tensor import Shape

Launches = tuple[Launch, ...]

TERMS = 32
"""That the kernel of `add_n` has room for."""
_DIMS = 3
"""Of a result, as the kernels of spread operands count them."""
_MOST_POSITIONS = 2**31
"""That such a kernel tells apart."""


def add(call: Call) -> Launches | None:
    """See `strategy.graph.ops.binary`."""
    return _binary(add, call)


def sub(call: Call) -> Launches | None:
    """See `strategy.graph.ops.binary`."""
    return _binary(sub, call)


def mul(call: Call) -> Launches | None:
    """See `strategy.graph.ops.binary`."""
    return _binary(mul, call)


def div(call: Call) -> Launches | None:
    """See `strategy.graph.ops.binary`."""
    return _binary(div, call)


def _binary(make: Callable[[Call], Launches | None], call: Call) -> Launches | None:
    """The kernel of a function's own name; None for integers, and for operands that are spread over too many dims."""
    (x, y), (out,) = call.inputs, call.outputs
    element = element_of(out)
    if element not in ELEMENTS:
        return None
    if x.shape == y.shape:
        arguments = (x, y, out, np.int64(out.size), wide((x, y, out)))
        return (Launch(f"{make.__name__}_alike", element, in_strides(out.size, element), arguments),)
    return _spread(f"{make.__name__}_spread", x, y, out)


def _spread(kernel: str, x: Array, y: Array, out: Array) -> Launches | None:
    dims = merged_dims(x.shape, y.shape, out.shape)
    if len(dims) > _DIMS or out.size >= _MOST_POSITIONS:
        return None
    dims = [(1, True, True)] * (_DIMS - len(dims)) + dims
    of_x, of_y = (_steps([(size, held[operand]) for size, *held in dims]) for operand in (0, 1))
    (_, *_), (middle, *_), (inner, *_) = dims
    sizes = tuple(map(np.int32, (middle, inner, out.size)))
    element = element_of(out)
    arguments = (x, y, out, struct(of_x), struct(of_y), *sizes, wide((x, y, out), inner))
    return (Launch(kernel, element, in_strides(out.size, element), arguments),)


def merged_dims(x: Shape, y: Shape, out: Shape) -> list[tuple[int, bool, bool]]:
    """Dims of a result as few as can be: the size of each, and whether the operands have it or are spread over it.

    (4, 6, 5) of (4, 6, 5) and (5,): [(24, True, False), (5, True, True)].
    """
    padded = [(1,) * (len(out) - len(shape)) + shape for shape in (x, y)]
    found: list[tuple[int, bool, bool]] = []
    for size, of_x, of_y in zip(out, *padded, strict=True):
        held = (of_x == size, of_y == size)
        if size == 1:
            continue
        if found and found[-1][1:] == held:
            found[-1] = (found[-1][0] * size, *held)
        else:
            found.append((size, *held))
    return found


def _steps(dims: list[tuple[int, bool]]) -> list[int]:
    """Elements of an operand from one index of each dim to the next."""
    found, step = [], 1
    for size, held in reversed(dims):
        found.append(step if held else 0)
        step *= size if held else 1
    return found[::-1]


def accumulate(call: Call) -> Launches | None:
    """See `strategy.graph.ops.reduction`: a copy where a sum begins, else one more term; None for integers."""
    (x,), (out,), element = call.inputs, call.outputs, element_of(call.outputs[0])
    if element not in ELEMENTS or element_of(x) != element:
        return None
    kernel, operands = ("copy_elements", (x, out)) if call.first_of_piece else ("add_alike", (out, x, out))
    return (Launch(kernel, element, in_strides(out.size, element), (*operands, np.int64(out.size), wide((x, out)))),)


def add_n(call: Call) -> Launches | None:
    """See `strategy.graph.ops.linear`; None for integers, and for more terms than there is room for."""
    (out,), element = call.outputs, element_of(call.outputs[0])
    if element not in ELEMENTS or len(call.inputs) > TERMS:
        return None
    terms, count = Addresses(call.inputs, TERMS), np.int32(len(call.inputs))
    arguments = (terms, count, out, np.int64(out.size), wide((*call.inputs, out)))
    return (Launch(add_n.__name__, element, in_strides(out.size, element), arguments),)
