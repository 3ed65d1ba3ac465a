"""Element-wise meanings on ragged operands: the rows that operands share, or all of them, as matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from strategy.graph.ops.base import Array, Call
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import Ragged, Shape, TensorSpec

Run = Callable[[Call], None]


def on_rows(run: Run, *, adds: bool = False) -> Run:
    """The meaning `run` of an op with one result, extended to ragged operands.

    Rows are those of all operands, for a row that is not there is zero, and so is what it is multiplied with; where the
    op `adds`, those of any. They differ only between terms of partial tensors.
    """

    def on_arrays_or_rows(call: Call) -> None:
        out = call.outputs[0]
        if not isinstance(out, Rows):
            run(call)
            return
        cells, operands = (_of_any if adds else _of_all)(call.inputs)
        run(replace(call, inputs=tuple(operands), outputs=(out.hold(cells),)))

    return on_arrays_or_rows


def alike(operands: Sequence[Rows]) -> bool:
    """Whether operands have the same rows."""
    first = operands[0].cells
    return all(len(rows.cells) == len(first) and bool((rows.cells == first).all()) for rows in operands[1:])


def _of_all(operands: Sequence[Rows]) -> tuple[Array, list[Array]]:
    cells = operands[0].cells
    if alike(operands):
        return cells, [rows.rows for rows in operands]
    for rows in operands[1:]:
        cells = cells[rows.find(cells)[0]]
    return cells, [rows.rows[rows.find(cells)[1]] for rows in operands]


def _of_any(operands: Sequence[Rows]) -> tuple[Array, list[Array]]:
    if alike(operands):
        return operands[0].cells, [rows.rows for rows in operands]
    xp = operands[0].xp
    cells = xp.unique(xp.concatenate([rows.cells for rows in operands]))
    spread = []
    for rows in operands:
        spread.append(xp.zeros((len(cells), rows.shape[-1]), rows.dtype))
        spread[-1][xp.searchsorted(cells, rows.cells)] = rows.rows
    return cells, spread


def same_rows(drawn: Sequence[Array]) -> Array:
    """Of the second operand of an example, written out, those rows that the first one has."""
    return drawn[1] * (drawn[0] != 0).any(axis=-1, keepdims=True)


def ragged_spec(shape: Shape, most: int) -> TensorSpec:
    """A ragged tensor of this shape, for examples."""
    return TensorSpec(shape, ragged=Ragged(most, shape[:-1]))
