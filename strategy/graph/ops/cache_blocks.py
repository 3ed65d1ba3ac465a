"""Cache blocking: an act of many passes over large arrays makes all passes over one block, then over the next.

A pass over an array that no cache holds takes as long as memory gives it; with NumPy every operation is a pass. So an
act is run on blocks of its rows that a core's own cache holds, one after another (Lam, Rothberg and Wolf 1991,
"The cache performance and optimizations of blocked algorithms"). Other array modules fuse or have no such cache.
A meaning may bring a `kernel`, which does the same to flat arrays in one pass, for acts that run as machine code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from strategy.graph.ops.base import Array, Call
from strategy.graph.ops.machine_coded import as_machine_code, run_contiguous
from strategy.sbp.tensor import Shape

Run = Callable[[Call], None]

BLOCK_ELEMENTS = 1 << 15
"""Of one array in a block: 128 KiB of float32, so that four arrays lie in half a mebibyte."""
LEAST_ELEMENTS = 1 << 18
"""Of an array that is cut: a core's own cache holds smaller ones anyhow."""


def by_elements(run: Run, kernel: Run | None = None) -> Run:
    """The meaning of an op all of whose tensors have one shape, but for scalars, element by element."""

    def act(call: Call) -> None:
        arrays = (*call.inputs, *call.outputs, *call.updates)
        shape = arrays[0].shape
        if kernel is not None and as_machine_code(call.xp, arrays):
            groups = (call.inputs, call.outputs, call.updates)
            run_contiguous(
                kernel, call, *([(a.size,) if a.shape == shape else a.shape for a in group] for group in groups)
            )
            return
        whole = [array for array in arrays if array.shape != ()]
        if call.xp is not np or arrays[0].size < LEAST_ELEMENTS or not _lie_flat(whole, [shape] * len(whole)):
            run(call)
            return

        def part(group: Sequence[Array], rows: slice) -> tuple[Array, ...]:
            return tuple(array.reshape(-1)[rows] if array.shape != () else array for array in group)

        for rows in _blocks(arrays[0].size, BLOCK_ELEMENTS):
            parts = (part(group, rows) for group in (call.inputs, call.outputs, call.updates))
            inputs, outputs, updates = parts
            run(replace(call, inputs=inputs, outputs=outputs, updates=updates))

    return act


def on_operands(kernel: Callable[..., None]) -> Run:
    """The kernel of an act that takes inputs, then outputs, and nothing else."""
    return lambda call: kernel(*call.inputs, *call.outputs)


def by_rows(reads: str, writes: str, kernel: Run | None = None) -> Callable[[Run], Run]:
    """The meaning of an op that treats every row by itself, and may add something up over all rows.

    Args:
        reads: a letter for each operand that may be there: `x` is [..., d], `s` is [...], others are given whole.
        writes: the same for results; `t` is a total over all rows.
        kernel: is given x as [rows, d] and s as [rows].
    """

    def decorate(run: Run) -> Run:
        def act(call: Call) -> None:
            shape = call.inputs[0].shape
            if kernel is not None and as_machine_code(call.xp, (*call.inputs, *call.outputs)):
                rows = math.prod(shape[:-1])

                def flat(forms: str, arrays: Sequence[Array]) -> list[Shape]:
                    cut = {"x": (rows, shape[-1]), "s": (rows,)}
                    return [cut.get(form, array.shape) for form, array in zip(forms, arrays, strict=False)]

                run_contiguous(kernel, call, flat(reads, call.inputs), flat(writes, call.outputs))
                return
            forms = [*zip(reads, call.inputs, strict=False), *zip(writes, call.outputs, strict=True)]
            cut = [(form, array) for form, array in forms if form in "xs"]
            wanted = [shape if form == "x" else shape[:-1] for form, _ in cut]
            if (
                call.xp is not np
                or call.inputs[0].size < LEAST_ELEMENTS
                or shape[-1] == 0
                or not _lie_flat([array for _, array in cut], wanted)
            ):
                run(call)
                return
            _run_blocks(run, call, reads, writes)

        return act

    return decorate


def _run_blocks(run: Run, call: Call, reads: str, writes: str) -> None:
    width = call.inputs[0].shape[-1]
    for rows in _blocks(call.inputs[0].size // width, max(1, BLOCK_ELEMENTS // width)):

        def part(form: str, array: Array, rows: slice = rows) -> Array:
            if form not in "xs":
                return array
            flat = array.reshape(-1, width) if form == "x" else array.reshape(-1)
            return flat[rows]

        first = rows.start == 0
        outputs = [
            call.workspace.get(f"total {number}", array.shape, array.dtype)
            if form == "t" and not first
            else part(form, array)
            for number, (form, array) in enumerate(zip(writes, call.outputs, strict=True))
        ]
        inputs = tuple(map(part, reads, call.inputs))
        run(replace(call, inputs=inputs, outputs=tuple(outputs)))
        if not first:
            for form, array, more in zip(writes, call.outputs, outputs, strict=True):
                if form == "t":
                    array += more


def _blocks(rows: int, most: int) -> Iterator[slice]:
    return (slice(begin, min(begin + most, rows)) for begin in range(0, rows, most))


def _lie_flat(arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether arrays have these shapes and are flattened without a copy."""
    return all(
        isinstance(array, np.ndarray) and array.shape == shape and array.flags.c_contiguous
        for array, shape in zip(arrays, shapes, strict=True)
    )
