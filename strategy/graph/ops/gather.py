"""`gather`: slices of a tensor along one axis by index, as an embedding takes rows of its table; and its adjoint.

gather       x[a.., n, z..], indices[i..]     -> [a.., i.., z..]      attribute axis: the place of n
gather_grad  indices[i..], dy[a.., i.., z..]  -> [a.., n, z..]        attributes axis, rows: n

The gathered axis may be split: foreign indices give zeros, so that the results of all ranks add up (the split
vocabulary of Shoeybi et al. 2019, arXiv:1909.08053, section 3). Repeated indices add up in the adjoint.
"""

from __future__ import annotations

import math

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import (
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    int_attr,
    linear_in,
    picks_from,
    shapes,
    split_letters,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.machine_coded import as_machine_code, as_operand
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import DType, TensorSpec

_X = "abcdefgh"
_INDICES = "ijklmn"


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, indices = inputs
    axis = int_attr(attrs, "axis")
    expect(not indices.dtype.is_float, "gather needs integer indices", got=indices.dtype, expected="int32 or int64")
    expect(0 <= axis < len(x.shape), "gather along a dim that is not there", got=axis, expected=f"a dim of {x.shape}")
    return (TensorSpec((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)


def _letters(x_dims: int, index_dims: int, axis: int) -> tuple[str, str, str]:
    """Letters of x, of the indices and of the result."""
    x, indices = _X[:x_dims], _INDICES[:index_dims]
    return x, indices, x[:axis] + indices + x[axis + 1 :]


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    x, indices, result = _letters(len(inputs[0].shape), len(inputs[1].shape), int_attr(attrs, "axis"))
    return [*split_letters([x, indices], [result]), *picks_from((0,), 2)]


def _run(call: Call) -> None:
    xp, (x, indices), out = call.xp, call.inputs, call.outputs[0]
    axis = int_attr(call.attrs, "axis")
    begin, end = call.input_boxes[0][axis]
    local = indices - begin
    foreign = (local < 0) | (local >= end - begin)
    xp.take(x, xp.where(foreign, 0, local), axis=axis, out=out)
    if foreign.any():
        out[(slice(None),) * axis + (foreign,)] = 0


def _gradient(builder: GradientBuilder) -> None:
    if builder.wants(0):
        x, indices = builder.op.inputs
        axis = int_attr(builder.op.attrs, "axis")
        attrs = {"axis": axis, "rows": builder.specs((x,))[0].shape[axis]}
        builder.give(0, builder.emit("dx", "gather_grad", (indices, builder.output_gradient()), attrs))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    indices, grad = inputs
    axis, rows = int_attr(attrs, "axis"), int_attr(attrs, "rows")
    after = axis + len(indices.shape)
    composes = not indices.dtype.is_float and grad.shape[axis:after] == indices.shape
    expect(composes, "gather_grad shapes do not compose", got=shapes(inputs), expected="indices[i..], dy[.., i.., ..]")
    return (TensorSpec((*grad.shape[:axis], rows, *grad.shape[after:]), grad.dtype),)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    axis = int_attr(attrs, "axis")
    x, indices, result = _letters(len(outputs[0].shape), len(inputs[0].shape), axis)
    own_rows = AxisSignature((B, B), (Split(axis),))
    return [*split_letters([indices, result], [x], skip=x[axis]), own_rows, linear_in([1], 2)]


def _run_grad(call: Call) -> None:
    """Adds every slice of dy where it came from; slices that belong to other ranks are left out."""
    xp, (indices, grad), dx = call.xp, call.inputs, call.outputs[0]
    axis = int_attr(call.attrs, "axis")
    begin, end = call.output_boxes[0][axis]
    local = indices.reshape(-1) - begin
    mine = (local >= 0) & (local < end - begin)
    before, after = grad.shape[:axis], grad.shape[axis + indices.ndim :]
    slices = grad.reshape(*before, local.size, *after)
    dx[...] = 0
    if not before and as_machine_code(xp, (grad, dx)) and dx.flags.carray:
        terms = as_operand(slices, (local.size, math.prod(after)))
        row_kernels.add_rows(terms, local.astype(np.int64), dx.reshape(dx.shape[0], -1))
        return
    add = _add_rows if xp is np else xp.add.at
    add(xp.moveaxis(dx, axis, 0), local[mine], xp.moveaxis(slices, axis, 0)[mine])


def _add_rows(target: Array, rows: Array, terms: Array) -> None:
    """`np.add.at(target, rows, terms)`, some ten times faster: the first term of every row at once, then the second.

    So every row adds up in the order of its terms, and the bits are those of `add.at`.
    """
    if not rows.size:
        return
    order = np.argsort(rows, kind="stable")
    in_order = rows[order]
    first = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    times = np.diff(np.append(first, rows.size))
    turn = np.arange(rows.size) - np.repeat(first, times)
    order = order[np.argsort(turn, kind="stable")]
    begin = 0
    for count in np.bincount(turn):
        picked = order[begin : begin + count]
        target[rows[picked]] += terms[picked]
        begin += count


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[1].size


def _nbytes(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Only the gathered slices are read."""
    return inputs[1].nbytes + 2 * outputs[0].nbytes


_IDS, _MANY = TensorSpec((7,), DType.INT32), TensorSpec((4, 7), DType.INT32)
_TABLE = TensorSpec((5, 6))

OPS = (
    OpDef(
        "gather",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        nbytes=_nbytes,
        examples=(
            Example((_TABLE, _MANY), attrs={"axis": 0}, ranges={1: (0, 5)}),
            Example((_TABLE, _IDS), attrs={"axis": 1}, ranges={1: (0, 6)}),
            Example((TensorSpec((4, 5, 6)), _IDS), attrs={"axis": 1}, ranges={1: (0, 5)}),
        ),
    ),
    OpDef(
        "gather_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad,
        examples=(
            Example((_MANY, TensorSpec((4, 7, 6))), attrs={"axis": 0, "rows": 5}, ranges={0: (0, 5)}),
            Example((_IDS, TensorSpec((4, 7, 6))), attrs={"axis": 1, "rows": 5}, ranges={0: (0, 5)}),
        ),
    ),
)
