"""Grouped product: every row with the matrix of its expert.

    grouped_matmul     rows[e,g,s,d]  w[e,d,f]       -> rows[e,g,s,f]     with `transpose` 1: [e,g,s,f] -> [e,g,s,d]
    grouped_matmul_tn  rows[e,g,s,d]  dy[e,g,s,f]    -> [e,d,f]           the gradient of w

The rows are ragged (`strategy.sbp.ragged`) and lie by expert, so each expert multiplies one block of them (MegaBlocks:
Gale et al. 2022, arXiv:2211.15841). It is an einsum over egsd and edf; a rank does what the rows in its box ask for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    int_attr,
    linear_in,
    shapes,
    split_letters,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import alike, ragged_spec, same_rows
from strategy.graph.ops.traits import Gemm, Operands, PrecisionClass, Product, RecomputeClass
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rows, w = inputs
    inner, outer = (2, 1) if int_attr(attrs, "transpose") else (1, 2)
    deep = rows.ragged is not None and len(rows.shape) == 4 and len(w.shape) == 3 and w.ragged is None
    composes = deep and (rows.shape[0], rows.shape[3], rows.dtype) == (w.shape[0], w.shape[inner], w.dtype)
    expected = "ragged rows[e, g, s, d], w[e, d, f]"
    expect(composes, "grouped_matmul shapes do not compose", got=shapes(inputs), expected=expected)
    return (rows.piece((*rows.shape[:3], w.shape[outer])),)


def _infer_tn(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rows, dy = inputs
    composes = rows.ragged is not None and len(rows.shape) == 4 and rows.piece(dy.shape) == dy
    composes = composes and rows.shape[:3] == dy.shape[:3]
    expected = "ragged rows[e, g, s, d] and dy[e, g, s, f]"
    expect(composes, "grouped_matmul_tn shapes do not compose", got=shapes(inputs), expected=expected)
    return (TensorSpec((rows.shape[0], rows.shape[3], dy.shape[3]), rows.dtype),)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    given, made = ("egsf", "egsd") if int_attr(attrs, "transpose") else ("egsd", "egsf")
    return [*split_letters([given, "edf"], [made]), linear_in([0], 2), linear_in([1], 2)]


def _signatures_tn(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*split_letters(["egsd", "egsf"], ["edf"]), linear_in([0], 2), linear_in([1], 2)]


def _blocks(rows: Rows) -> Iterator[tuple[int, slice]]:
    """(expert of the box, its rows), experts without rows left out."""
    bounds = rows.expert_bounds().tolist()
    for expert, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if begin < end:
            yield expert, slice(begin, end)


def _run(call: Call) -> None:
    xp, (rows, w), (out,) = call.xp, call.inputs, call.outputs
    matrices = w.transpose(0, 2, 1) if int_attr(call.attrs, "transpose") else w
    held = out.hold(rows.cells)
    for expert, some in _blocks(rows):
        xp.matmul(rows.rows[some], matrices[expert], out=held[some])


def _run_tn(call: Call) -> None:
    """Terms of either operand may lack rows, which count as zero."""
    xp, (rows, dy), (out,) = call.xp, call.inputs, call.outputs
    out[...] = 0
    matched = alike([rows, dy])
    for expert, some in _blocks(rows):
        if matched:
            xp.matmul(rows.rows[some].T, dy.rows[some], out=out[expert])
        else:
            hits, place = dy.find(rows.cells[some])
            xp.matmul(rows.rows[some][hits].T, dy.rows[place], out=out[expert])


def _gradient(builder: GradientBuilder) -> None:
    op, dy = builder.op, builder.output_gradient()
    rows, w = op.inputs
    transposed = int_attr(op.attrs, "transpose")
    if builder.wants(0):
        builder.give(0, builder.emit("drows", "grouped_matmul", (dy, w), {"transpose": 1 - transposed}))
    if builder.wants(1):
        operands = (dy, rows) if transposed else (rows, dy)
        builder.give(1, builder.emit("dw", "grouped_matmul_tn", operands))


def _gradient_tn(builder: GradientBuilder) -> None:
    rows, dy = builder.op.inputs
    dw = builder.output_gradient()
    if builder.wants(0):
        builder.give(0, builder.emit("drows", "grouped_matmul", (dy, dw), {"transpose": 1}))
    if builder.wants(1):
        builder.give(1, builder.emit("ddy", "grouped_matmul", (rows, dw), {"transpose": 0}))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size * outputs[0].shape[-1]


def _flop_tn(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size * inputs[1].shape[-1]


def _example(experts: int, inner: int, outer: int, transpose: int) -> Example:
    w = TensorSpec((experts, outer, inner) if transpose else (experts, inner, outer))
    return Example((ragged_spec((experts, 4, 5, inner), 2), w), attrs={"transpose": transpose})


OPS = (
    OpDef(
        "grouped_matmul",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        ragged=True,
        cost=Product(Gemm.GROUPED),
        precision=PrecisionClass.HALF,
        recompute=RecomputeClass.PRODUCT,
        expert_weights=1,
        coded="scaled_grouped_matmul",
        block_coded="block_scaled_grouped_matmul",
        examples=(_example(5, 4, 5, 0), _example(4, 7, 4, 1)),
    ),
    OpDef(
        "grouped_matmul_tn",
        _infer_tn,
        _flop_tn,
        _signatures_tn,
        _run_tn,
        _gradient_tn,
        ragged=True,
        cost=Product(Gemm.GROUPED, Operands.TN, batch_dims=True),
        coded="scaled_grouped_matmul_tn",
        examples=(Example((ragged_spec((5, 4, 5, 7), 2), ragged_spec((5, 4, 5, 4), 2)), derive={1: same_rows}),),
    ),
)
