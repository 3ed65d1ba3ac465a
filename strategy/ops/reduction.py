"""Reductions: `sum_leading` (a bias gradient), `square_sum` (a term of a norm), `accumulate` (over micro-batches)."""

from __future__ import annotations

from strategy.graph import Attrs
from strategy.ops.base import (
    AxisSignature,
    Call,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    int_attr,
    linear_in,
    split_letters,
)
from strategy.sbp import P, Split
from strategy.tensor import TensorSpec

_LETTERS = "abcdefgh"


def _infer_sum_leading(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    keep = int_attr(attrs, "keep")
    dims = len(inputs[0].shape)
    expect(0 <= keep <= dims, "sum_leading keeps dims that are not there", got=keep, expected=f"0 to {dims} dims")
    return (TensorSpec(inputs[0].shape[len(inputs[0].shape) - keep :], inputs[0].dtype),)


def _signatures_sum_leading(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    letters = _LETTERS[: len(inputs[0].shape)]
    return [*split_letters([letters], [letters[len(letters) - len(outputs[0].shape) :]]), linear_in([0], 1)]


def _run_sum_leading(call: Call) -> None:
    x, out = call.inputs[0], call.outputs[0]
    rows = x.reshape(-1, out.size)
    count = rows.shape[0]
    ones = call.workspace.constant("ones", (1, count), x.dtype, lambda: call.xp.ones((1, count), x.dtype))
    call.xp.matmul(ones, rows, out=out.reshape(1, -1))  # a product with ones sums faster than a strided reduction


def _infer_square_sum(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec((), inputs[0].dtype),)


def _signatures_square_sum(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d),), (P,)) for d in range(len(inputs[0].shape))]


def _run_square_sum(call: Call) -> None:
    flat = call.inputs[0].reshape(-1)
    call.outputs[0][...] = call.xp.dot(flat, flat)


def _infer_first(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _signatures_accumulate(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 1), linear_in([0], 1)]


def _run_accumulate(call: Call) -> None:
    total = call.outputs[0]
    if call.first_of_piece:
        total[...] = call.inputs[0]
    else:
        total += call.inputs[0]


def _flop_input(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size


def _flop_square_sum(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size


OPS = (
    OpDef("sum_leading", _infer_sum_leading, _flop_input, _signatures_sum_leading, _run_sum_leading),
    OpDef("square_sum", _infer_square_sum, _flop_square_sum, _signatures_square_sum, _run_square_sum),
    OpDef("accumulate", _infer_first, _flop_input, _signatures_accumulate, _run_accumulate, accumulates=True),
)
