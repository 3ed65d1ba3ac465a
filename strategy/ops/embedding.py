"""Embedding: rows of a table by index, with the table split over the vocabulary or the width, and its gradient."""

from __future__ import annotations

from strategy.gradient import GradientBuilder
from strategy.graph import Attrs
from strategy.ops.base import (
    AxisSignature,
    Call,
    OpDef,
    Specs,
    expect,
    int_attr,
    shapes,
    split_letters,
)
from strategy.sbp import B, P, Split
from strategy.tensor import TensorSpec

_LETTERS = "abcdef"


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    ids, table = inputs
    composes = not ids.dtype.is_float and len(table.shape) == 2
    expect(composes, "embedding needs integer ids and a matrix", got=shapes(inputs), expected="ids[...], table[v, d]")
    return (TensorSpec((*ids.shape, table.shape[1]), table.dtype),)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    ids = _LETTERS[: len(inputs[0].shape)]
    by_letter = split_letters([ids, "vw"], [ids + "w"])  # the split vocabulary gives P: foreign rows are zero
    return [*by_letter, AxisSignature((B, P), (P,))]


def _run(call: Call) -> None:
    xp, (ids, table), out = call.xp, call.inputs, call.outputs[0]
    (begin, end), _ = call.input_boxes[1]
    rows = ids - begin
    foreign = (rows < 0) | (rows >= end - begin)
    xp.take(table, xp.where(foreign, 0, rows), axis=0, out=out)
    if foreign.any():
        out[foreign] = 0


def _gradient(builder: GradientBuilder) -> None:
    ids, table = builder.op.inputs
    rows = builder.specs((table,))[0].shape[0]
    builder.give(1, builder.emit("dtable", "embedding_grad", (ids, builder.output_gradient()), {"rows": rows}))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec((int_attr(attrs, "rows"), inputs[1].shape[-1]), inputs[1].dtype),)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    ids = _LETTERS[: len(inputs[0].shape)]
    vocabulary = AxisSignature((B, B), (Split(0),))
    return [*split_letters([ids, ids + "w"], ["vw"], skip="v"), vocabulary, AxisSignature((B, P), (P,))]


def _run_grad(call: Call) -> None:
    """Adds every row of dy to the table row that it came from; rows of other ranks' vocabulary are left out."""
    xp, (ids, dy), dtable = call.xp, call.inputs, call.outputs[0]
    (begin, end), _ = call.output_boxes[0]
    rows = ids.reshape(-1) - begin
    mine = (rows >= 0) & (rows < end - begin)
    dtable[...] = 0
    xp.add.at(dtable, rows[mine], dy.reshape(-1, dy.shape[-1])[mine])


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[1].size


def _nbytes(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].nbytes + 2 * outputs[0].nbytes


OPS = (
    OpDef("embedding", _infer, _flop, _signatures, _run, _gradient, nbytes=_nbytes),
    OpDef("embedding_grad", _infer_grad, _flop_grad, _signatures_grad, _run_grad),
)
