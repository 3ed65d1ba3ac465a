"""Grouped product: every row with the matrix of its expert, rows sorted by expert, ragged counts per group.

    grouped_matmul     rows[g,r,d]  w[e,d,f]   counts[g,e] -> [g,r,f]     with `transpose` 1: rows[g,r,f] -> [g,r,d]
    grouped_matmul_tn  rows[g,r,d]  dy[g,r,f]  counts[g,e] -> [e,d,f]     the gradient of w

Of the r rows of a group the first counts[g,0] belong to expert 0, and so on (MegaBlocks: Gale et al. 2022,
arXiv:2211.15841). Rows beyond the counts give zeros, and counts beyond the rows are cut. Splitting the experts is
box-aware: from all rows a rank does those of its own experts, and the sum over the ranks is the whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from strategy.graph import Attrs
from strategy.ops.base import (
    Array,
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
from strategy.ops.gradient import GradientBuilder
from strategy.sbp import B, P, Split
from strategy.tensor import DType, TensorSpec


def _check(kind: str, inputs: Specs, *, composes: bool) -> None:
    rows, _, counts = inputs
    counted = len(counts.shape) == 2 and not counts.dtype.is_float and counts.shape[:1] == rows.shape[:1]
    expected = "rows[g, r, d], w[e, d, f] or dy[g, r, f], counts[g, e]"
    expect(composes and counted, f"{kind} shapes do not compose", got=shapes(inputs), expected=expected)


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rows, w, counts = inputs
    deep = len(rows.shape) == len(w.shape) == 3 and rows.dtype == w.dtype
    inner, outer = (2, 1) if int_attr(attrs, "transpose") else (1, 2)
    composes = deep and rows.shape[2] == w.shape[inner] and counts.shape[-1:] == w.shape[:1]
    _check("grouped_matmul", inputs, composes=composes)
    return (TensorSpec((*rows.shape[:2], w.shape[outer]), rows.dtype),)


def _infer_tn(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rows, dy, counts = inputs
    composes = len(rows.shape) == len(dy.shape) == 3 and rows.shape[:2] == dy.shape[:2] and rows.dtype == dy.dtype
    _check("grouped_matmul_tn", inputs, composes=composes)
    return (TensorSpec((counts.shape[1], rows.shape[2], dy.shape[2]), rows.dtype),)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    given, made = ("grf", "grd") if int_attr(attrs, "transpose") else ("grd", "grf")
    return [
        *split_letters([given, "edf", "ge"], [made], skip="e"),
        AxisSignature((B, Split(0), B), (P,)),
        linear_in([0], 3),
        linear_in([1], 3),
    ]


def _signatures_tn(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [
        *split_letters(["grd", "grf", "ge"], ["edf"], skip="e"),
        AxisSignature((B, B, B), (Split(0),)),
        linear_in([0], 3),
        linear_in([1], 3),
    ]


def _segments(counts: Array, rows: tuple[int, int], experts: tuple[int, int]) -> Iterator[tuple[int, int, slice]]:
    """(group, expert, rows) of a rank, expert and rows counted within its boxes, where there are any."""
    begin, end = rows
    for group, row in enumerate(counts.tolist()):
        at = 0
        for expert, count in enumerate(row):
            first, last = max(at, begin), min(at + count, end)
            at += count
            if first < last and experts[0] <= expert < experts[1]:
                yield group, expert - experts[0], slice(first - begin, last - begin)


def _run(call: Call) -> None:
    xp, (rows, w, counts), out = call.xp, call.inputs, call.outputs[0]
    matrices = w.transpose(0, 2, 1) if int_attr(call.attrs, "transpose") else w
    out[...] = 0
    for group, expert, some in _segments(counts, call.input_boxes[0][1], call.input_boxes[1][0]):
        xp.matmul(rows[group, some], matrices[expert], out=out[group, some])


def _run_tn(call: Call) -> None:
    xp, (rows, dy, counts), out = call.xp, call.inputs, call.outputs[0]
    out[...] = 0
    for group, expert, some in _segments(counts, call.input_boxes[0][1], call.output_boxes[0][0]):
        out[expert] += xp.matmul(rows[group, some].T, dy[group, some])


def _gradient(builder: GradientBuilder) -> None:
    op, dy = builder.op, builder.output_gradient()
    rows, w, counts = op.inputs
    transposed = int_attr(op.attrs, "transpose")
    if builder.wants(0):
        builder.give(0, builder.emit("drows", "grouped_matmul", (dy, w, counts), {"transpose": 1 - transposed}))
    if builder.wants(1):
        operands = (dy, rows, counts) if transposed else (rows, dy, counts)
        builder.give(1, builder.emit("dw", "grouped_matmul_tn", operands))


def _gradient_tn(builder: GradientBuilder) -> None:
    rows, dy, counts = builder.op.inputs
    dw = builder.output_gradient()
    if builder.wants(0):
        builder.give(0, builder.emit("drows", "grouped_matmul", (dy, dw, counts), {"transpose": 1}))
    if builder.wants(1):
        builder.give(1, builder.emit("ddy", "grouped_matmul", (rows, dw, counts), {"transpose": 0}))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Of the rank's share of the experts, were the rows spread evenly over them."""
    rows, w, counts = inputs
    return 2 * rows.size * outputs[0].shape[2] * w.shape[0] // counts.shape[1]


def _flop_tn(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    rows, dy, counts = inputs
    return 2 * rows.size * dy.shape[2] * outputs[0].shape[0] // counts.shape[1]


def _example(groups: int, rows: int, experts: int, inner: int, outer: int, transpose: int) -> Example:
    counts = TensorSpec((groups, experts), DType.INT32)
    w = TensorSpec((experts, outer, inner) if transpose else (experts, inner, outer))
    ranges = {2: (0, 2 * rows // experts + 1)}
    return Example((TensorSpec((groups, rows, inner)), w, counts), attrs={"transpose": transpose}, ranges=ranges)


OPS = (
    OpDef(
        "grouped_matmul",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        examples=(_example(4, 7, 5, 4, 5, 0), _example(5, 6, 4, 7, 4, 1)),
    ),
    OpDef(
        "grouped_matmul_tn",
        _infer_tn,
        _flop_tn,
        _signatures_tn,
        _run_tn,
        _gradient_tn,
        examples=(
            Example(
                (TensorSpec((4, 7, 5)), TensorSpec((4, 7, 4)), TensorSpec((4, 5), DType.INT32)), ranges={2: (0, 3)}
            ),
        ),
    ),
)
