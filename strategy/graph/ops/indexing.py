"""`one_hot`, `top_k`, `pick` and `argmax`, all over the last dim.

`top_k` and `argmax` do not split the dim that they search: winners of the pieces are no terms of any reduction, so
it would take a second round of choosing among them. Where that is wanted, gather the dim.
"""

from __future__ import annotations

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    int_attr,
    linear_in,
    picks_from,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import DType, TensorSpec


def _leading(dims: int, reads: int, writes: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d),) * reads, (Split(d),) * writes) for d in range(dims)]


def _infer_one_hot(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(not inputs[0].dtype.is_float, "one_hot needs integers", got=inputs[0].dtype, expected="int32 or int64")
    dtype = DType(str(attrs.get("dtype", DType.FLOAT32)))
    return (TensorSpec((*inputs[0].shape, int_attr(attrs, "depth")), dtype),)


def _signatures_one_hot(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    dims = len(inputs[0].shape)
    return [*_leading(dims, 1, 1), AxisSignature((B,), (Split(dims),))]


def _run_one_hot(call: Call) -> None:
    """1 where the index is the column, a row of zeros for an index that no column has."""
    begin, end = call.output_boxes[0][-1]
    call.outputs[0][...] = call.inputs[0][..., None] == call.xp.arange(begin, end)


def _gradient_none(builder: GradientBuilder) -> None:
    """Integers have no gradient."""


def _infer_top_k(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    shape, k = inputs[0].shape, int_attr(attrs, "k")
    legal = len(shape) > 0 and 1 <= k <= shape[-1]
    expect(legal, "top_k takes more than there is", got=(shape, k), expected="1 <= k <= the last dim")
    found = (*shape[:-1], k)
    return (TensorSpec(found, inputs[0].dtype), TensorSpec(found, DType.INT32))


def _signatures_top_k(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return _leading(len(inputs[0].shape) - 1, 1, 2)


def _run_top_k(call: Call) -> None:
    """The k largest, largest first, and where they were; of equal ones the first."""
    xp, x, (values, indices) = call.xp, call.inputs[0], call.outputs
    found = xp.argsort(-x, axis=-1, kind="stable")[..., : indices.shape[-1]]
    values[...] = xp.take_along_axis(x, found, axis=-1)
    indices[...] = found


def _gradient_top_k(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs)
        operands = (builder.op.outputs[1], builder.output_gradient())
        builder.give(0, builder.emit("dx", "top_k_grad", operands, {"size": x.shape[-1]}))


def _infer_top_k_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    indices, grad = inputs
    composes = indices.shape == grad.shape and not indices.dtype.is_float
    expect(composes, "top_k_grad shapes do not compose", got=shapes(inputs), expected="indices[..., k], dy[..., k]")
    return (TensorSpec((*grad.shape[:-1], int_attr(attrs, "size")), grad.dtype),)


def _signatures_top_k_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """The indices of a row differ, so slots may be split as well: each rank puts its own."""
    slots, dims = Split(len(inputs[0].shape) - 1), len(inputs[0].shape) - 1
    return [
        *_leading(dims, 2, 1),
        AxisSignature((slots, slots), linear_in([1], 2).outputs),
        AxisSignature((B, B), (slots,)),
        linear_in([1], 2),
    ]


def _run_top_k_grad(call: Call) -> None:
    """Puts every gradient where its value came from, as far as this rank holds that."""
    xp, (indices, grad), dx = call.xp, call.inputs, call.outputs[0]
    begin, end = call.output_boxes[0][-1]
    columns = indices.reshape(-1, indices.shape[-1]) - begin
    here = (columns >= 0) & (columns < end - begin)
    # Not by looking for those that are here: a device would have to tell the host how many.
    columns, grads = xp.where(here, columns, 0), xp.where(here, grad.reshape(columns.shape), 0)
    dx[...] = 0
    rows, flat = xp.arange(len(columns)), dx.reshape(-1, dx.shape[-1])
    for slot in range(columns.shape[1]):
        flat[rows, columns[:, slot]] += grads[:, slot]


def _infer_pick(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, indices = inputs
    composes = len(x.shape) > 0 and x.shape[:-1] == indices.shape[:-1] and not indices.dtype.is_float
    expect(composes, "pick shapes do not compose", got=shapes(inputs), expected="x[..., n], integers[..., k]")
    return (TensorSpec(indices.shape, x.dtype),)


def _signatures_pick(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Every slot copies one cell; slots may be split, and of split cells each rank has those that it holds."""
    slots = Split(len(inputs[0].shape) - 1)
    cells = AxisSignature((slots, B), linear_in([0], 2).outputs)
    found = [*_leading(len(inputs[0].shape) - 1, 2, 1), AxisSignature((B, slots), (slots,)), cells]
    return [*found, *picks_from((0,), 2)]


def _run_pick(call: Call) -> None:
    """The cells at the indices, zero for those that another rank holds."""
    xp, (x, indices), out = call.xp, call.inputs, call.outputs[0]
    begin, end = call.input_boxes[0][-1]
    held = (indices >= begin) & (indices < end)
    out[...] = xp.where(held, xp.take_along_axis(x, xp.where(held, indices - begin, 0), axis=-1), 0)


def _gradient_pick(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs[:1])
        operands = (builder.op.inputs[1], builder.output_gradient())
        builder.give(0, builder.emit("dx", "top_k_grad", operands, {"size": x.shape[-1]}))


def _infer_argmax(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(len(inputs[0].shape) > 0, "argmax of a scalar", got=shapes(inputs), expected="x[..., n]")
    return (TensorSpec(inputs[0].shape[:-1], DType.INT32),)


def _signatures_argmax(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return elementwise_signatures(outputs[0].shape, 1)


def _run_argmax(call: Call) -> None:
    """Where the largest is; of equal ones the first."""
    call.outputs[0][...] = call.inputs[0].argmax(axis=-1)


def _flop_none(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _flop_compare(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size


_CHOSEN = TensorSpec((7, 4), DType.INT32)

OPS = (
    OpDef(
        "one_hot",
        _infer_one_hot,
        _flop_none,
        _signatures_one_hot,
        _run_one_hot,
        _gradient_none,
        examples=(
            Example((TensorSpec((7,), DType.INT32),), attrs={"depth": 5}, ranges={0: (0, 5)}),
            Example((TensorSpec((4, 6), DType.INT32),), attrs={"depth": 5, "dtype": "int32"}, ranges={0: (0, 5)}),
        ),
    ),
    OpDef(
        "top_k",
        _infer_top_k,
        _flop_compare,
        _signatures_top_k,
        _run_top_k,
        _gradient_top_k,
        examples=(
            Example((TensorSpec((7, 5)),), attrs={"k": 4}),
            Example((TensorSpec((4, 6, 5)),), attrs={"k": 2}),
        ),
    ),
    OpDef(
        "top_k_grad",
        _infer_top_k_grad,
        _flop_none,
        _signatures_top_k_grad,
        _run_top_k_grad,
        examples=(
            Example(
                (_CHOSEN, TensorSpec((7, 4))),
                attrs={"size": 40},
                ranges={0: (0, 40)},
                derive={0: lambda drawn: (drawn[0][..., :1] + 9 * np.arange(4)) % 40},  # no row chooses a cell twice
            ),
        ),
    ),
    OpDef(
        "pick",
        _infer_pick,
        _flop_none,
        _signatures_pick,
        _run_pick,
        _gradient_pick,
        examples=(
            Example(
                (TensorSpec((7, 40)), _CHOSEN),
                ranges={1: (0, 40)},
                derive={1: lambda drawn: (drawn[1][..., :1] + 9 * np.arange(4)) % 40},  # as of `top_k_grad`
            ),
        ),
    ),
    OpDef(
        "argmax",
        _infer_argmax,
        _flop_compare,
        _signatures_argmax,
        _run_argmax,
        examples=(Example((TensorSpec((7, 5)),)), Example((TensorSpec((4, 6, 5)),))),
    ),
)
