"""The same elements under other dims: `reshape`, `transpose`, `expand`; terms of every reduction pass through."""

from __future__ import annotations

import math
from collections.abc import Iterator

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    LETTERS,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    ints_attr,
    picks_from,
    split_letters,
)
from strategy.graph.ops.binary import broadcast_letters, broadcast_shape, summed_to
from strategy.graph.ops.gradient import GradientBuilder
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import Shape, TensorSpec


def dim_groups(source: Shape, target: Shape) -> Iterator[tuple[int, int]]:
    """First dims of the matching groups of a reshape: (2, 6, 4) -> (2, 3, 2, 4) gives (0, 0), (1, 1), (2, 3).

    A group is a shortest run of source dims with the same product as a run of target dims; dims of one do not count.
    """
    sources = [i for i, size in enumerate(source) if size > 1]
    targets = [j for j, size in enumerate(target) if size > 1]
    i = j = 0
    while i < len(sources) and j < len(targets):
        yield sources[i], targets[j]
        left, right = source[sources[i]], target[targets[j]]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left *= source[sources[i]]
                i += 1
            else:
                right *= target[targets[j]]
                j += 1


def _infer_reshape(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    target = ints_attr(attrs, "shape")
    same = math.prod(target) == inputs[0].size
    expect(same, "reshape changes the number of elements", got=(inputs[0].shape, target), expected="equal products")
    return (TensorSpec(target, inputs[0].dtype),)


def _signatures_reshape(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """A split passes from the first dim of a group to the first of its match, if it cuts both at the same elements.

    It does where the dims are equal, or both divide. Later axes of a mesh see what is left of the group, so that
    (6) -> (2, 3) over [2, 3] also takes S(0), S(0) to S(0), S(1).
    """
    source, target = inputs[0].shape, outputs[0].shape
    found = []
    for i, j in dim_groups(source, target):
        if source[i] == target[j] or (source[i] % parts == 0 and target[j] % parts == 0):
            found.append(AxisSignature((Split(i),), (Split(j),)))
    return [*found, *picks_from((0,), 1)]


def _run_reshape(call: Call) -> None:
    x, out = call.inputs[0], call.outputs[0]
    out[...] = x.reshape(out.shape)


def _gradient_reshape(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs)
        builder.give(0, builder.emit("dx", "reshape", (builder.output_gradient(),), {"shape": x.shape}))


def _infer_transpose(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    perm = ints_attr(attrs, "perm")
    legal = sorted(perm) == list(range(len(inputs[0].shape)))
    expect(legal, "not a permutation of the dims", got=perm, expected=f"an order of {len(inputs[0].shape)} dims")
    return (TensorSpec(tuple(inputs[0].shape[p] for p in perm), inputs[0].dtype),)


def _signatures_transpose(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    perm = ints_attr(attrs, "perm")
    return [*(AxisSignature((Split(p),), (Split(i),)) for i, p in enumerate(perm)), *picks_from((0,), 1)]


def _run_transpose(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0].transpose(ints_attr(call.attrs, "perm"))


def _gradient_transpose(builder: GradientBuilder) -> None:
    if builder.wants(0):
        perm = ints_attr(builder.op.attrs, "perm")
        inverse = tuple(perm.index(d) for d in range(len(perm)))
        builder.give(0, builder.emit("dx", "transpose", (builder.output_gradient(),), {"perm": inverse}))


def _infer_expand(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    shape = ints_attr(attrs, "shape")
    fits = broadcast_shape((inputs[0].shape, shape)) == shape
    expect(fits, "expand does not compose", got=(inputs[0].shape, shape), expected="dims of 1 and new first dims grow")
    return (TensorSpec(shape, inputs[0].dtype),)


def _signatures_expand(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    shape = outputs[0].shape
    operand = broadcast_letters(inputs[0].shape, shape)
    return [*split_letters([operand], [LETTERS[: len(shape)]], skip="-"), *picks_from((0,), 1)]


def _run_expand(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0]


def _gradient_expand(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs)
        builder.give(0, summed_to(builder, "dx", builder.output_gradient(), x.shape))


def _no_flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


_RESHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((7, 5), (35,)),
    ((7, 4, 5), (7, 20)),
    ((7, 12), (7, 4, 3)),
    ((12, 5), (4, 1, 3, 5)),
    ((4, 6, 5), (6, 4, 5)),
    ((5, 1, 7), (1, 5, 7)),
)
_EXPANDS: tuple[tuple[Shape, Shape], ...] = (((5,), (4, 5)), ((7, 1, 5), (7, 6, 5)), ((), (7, 5)))

OPS = (
    OpDef(
        "reshape",
        _infer_reshape,
        _no_flop,
        _signatures_reshape,
        _run_reshape,
        _gradient_reshape,
        in_place=(0,),
        examples=tuple(Example((TensorSpec(x),), attrs={"shape": shape}) for x, shape in _RESHAPES),
    ),
    OpDef(
        "transpose",
        _infer_transpose,
        _no_flop,
        _signatures_transpose,
        _run_transpose,
        _gradient_transpose,
        examples=(
            Example((TensorSpec((7, 5)),), attrs={"perm": (1, 0)}),
            Example((TensorSpec((4, 6, 5)),), attrs={"perm": (2, 0, 1)}),
        ),
    ),
    OpDef(
        "expand",
        _infer_expand,
        _no_flop,
        _signatures_expand,
        _run_expand,
        _gradient_expand,
        examples=tuple(Example((TensorSpec(x),), attrs={"shape": shape}) for x, shape in _EXPANDS),
    ),
)
