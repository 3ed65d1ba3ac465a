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
    """Run a kernel on operands of these shapes, which lie flat: views of those of `call`, or copies where need be."""
    written, rewritten = _contiguous(call.outputs, outputs), _contiguous(call.updates, updates)
    kernel(replace(call, inputs=_contiguous(call.inputs, inputs), outputs=written, updates=rewritten))
    for array, result in zip((*call.outputs, *call.updates), (*written, *rewritten), strict=True):
        if not array.flags.c_contiguous:
            array[...] = result.reshape(array.shape)


def _contiguous(arrays: Sequence[Array], shapes: Sequence[Shape]) -> tuple[Array, ...]:
    found = []
    for array, shape in zip(arrays, shapes, strict=True):
        lying = np.ascontiguousarray(array).reshape(shape)
        # Kernels do not say which of their operands they only read.
        found.append(lying if lying.flags.writeable else lying.copy())
    return tuple(found)
