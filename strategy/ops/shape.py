"""`reshape` and `transpose`: the same elements under other dims."""

from __future__ import annotations

import math
from collections.abc import Iterator

from strategy.gradient import GradientBuilder
from strategy.graph import Attrs
from strategy.ops.base import AxisSignature, Call, OpDef, Specs, expect, ints_attr, linear_in
from strategy.sbp import Split
from strategy.tensor import Shape, TensorSpec


def dim_groups(source: Shape, target: Shape) -> Iterator[tuple[int, int]]:
    """First dims of the matching groups of a reshape: (2, 6, 4) -> (2, 3, 2, 4) gives (0, 0), (1, 1), (2, 3).

    A group is a shortest run of source dims with the same product as a run of target dims.
    """
    i = j = 0
    while i < len(source) and j < len(target):
        yield i, j
        left, right = source[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left *= source[i]
                i += 1
            else:
                right *= target[j]
                j += 1


def _infer_reshape(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    target = ints_attr(attrs, "shape")
    same = math.prod(target) == inputs[0].size
    expect(same, "reshape changes the number of elements", got=(inputs[0].shape, target), expected="equal products")
    return (TensorSpec(target, inputs[0].dtype),)


def _signatures_reshape(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """A split passes from the first dim of a group to the first of its match, if it cuts both at the same elements."""
    source, target = inputs[0].shape, outputs[0].shape
    found = []
    for i, j in dim_groups(source, target):
        if source[i] == target[j] or (source[i] % parts == 0 and target[j] % parts == 0):
            found.append(AxisSignature((Split(i),), (Split(j),)))
    return [*found, linear_in([0], 1)]


def _run_reshape(call: Call) -> None:
    x, out = call.inputs[0], call.outputs[0]
    out[...] = x.reshape(out.shape)


def _gradient_reshape(builder: GradientBuilder) -> None:
    (x,) = builder.specs(builder.op.inputs)
    builder.give(0, builder.emit("dx", "reshape", (builder.output_gradient(),), {"shape": x.shape}))


def _infer_transpose(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    perm = ints_attr(attrs, "perm")
    legal = sorted(perm) == list(range(len(inputs[0].shape)))
    expect(legal, "not a permutation of the dims", got=perm, expected=f"an order of {len(inputs[0].shape)} dims")
    return (TensorSpec(tuple(inputs[0].shape[p] for p in perm), inputs[0].dtype),)


def _signatures_transpose(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    perm = ints_attr(attrs, "perm")
    return [*(AxisSignature((Split(p),), (Split(i),)) for i, p in enumerate(perm)), linear_in([0], 1)]


def _run_transpose(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0].transpose(ints_attr(call.attrs, "perm"))


def _gradient_transpose(builder: GradientBuilder) -> None:
    perm = ints_attr(builder.op.attrs, "perm")
    inverse = tuple(perm.index(d) for d in range(len(perm)))
    builder.give(0, builder.emit("dx", "transpose", (builder.output_gradient(),), {"perm": inverse}))


def _no_flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


OPS = (
    OpDef("reshape", _infer_reshape, _no_flop, _signatures_reshape, _run_reshape, _gradient_reshape),
    OpDef("transpose", _infer_transpose, _no_flop, _signatures_transpose, _run_transpose, _gradient_transpose),
)
