"""Which acts run as machine code (`row_kernels`): those on float32 with NumPy, wherever there is a compiler.

That is asked of the environment and the dtype alone, never of how many rows there are or what has run before: ranks
that hold other shares of the same rows, and a run that goes on from a checkpoint, get the same bits. Without a
compiler, or without a folder for what it makes, which every rank would make anew, and for every other dtype, ops are
run by their NumPy meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from strategy.graph.ops.base import Array, ArrayModule, Call
from strategy.graph.ops.row_kernels import OBJECT_FILE
from strategy.sbp.tensor import Shape


def as_machine_code(xp: ArrayModule, arrays: Iterable[Array]) -> bool:
    """Whether an act on these does; whole numbers among them are as they may be."""
    return xp is np and all(a.dtype == np.float32 or a.dtype.kind != "f" for a in arrays) and _is_usable()


@cache
def _is_usable() -> bool:
    return OBJECT_FILE.is_usable()


def run_contiguous(
    kernel: Callable[[Call], None],
    call: Call,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    updates: Sequence[Shape] = (),
) -> None:
    """Run a kernel on operands of these shapes: views of those of `call`, or copies where need be."""
    read = tuple(map(as_operand, call.inputs, inputs))
    written, rewritten = tuple(map(as_operand, call.outputs, outputs)), tuple(map(as_operand, call.updates, updates))
    kernel(replace(call, inputs=read, outputs=written, updates=rewritten))
    for array, result in zip((*call.outputs, *call.updates), (*written, *rewritten), strict=True):
        if not array.flags.carray:
            array[...] = result.reshape(array.shape)


def as_operand(array: Array, shape: Shape) -> Array:
    """An array as kernels take it, which do not say what they only read: flat, aligned, writeable; else a copy."""
    lying: Array = np.ascontiguousarray(array).reshape(shape)
    return lying if lying.flags.carray else lying.copy()
