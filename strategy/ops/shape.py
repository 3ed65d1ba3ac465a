"""The same elements under other dims: `reshape`, `transpose`, `concat`, `slice` with its adjoint, `expand`.

Terms of every reduction pass through all of them (through the adjoint of a slice, which writes zeros, those of sums).
`slice` and its adjoint copy by logical coordinates: a rank copies what its pieces of operand and result share and
leaves zeros elsewhere. So a cut dim may be split on either side, and the pieces that are read give terms of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
    ints_attr,
    linear_in,
    picks_from,
    shapes,
    split_letters,
)
from strategy.ops.binary import broadcast_letters, broadcast_shape, summed_to
from strategy.ops.gradient import GradientBuilder
from strategy.sbp import B, P, Split
from strategy.tensor import Box, Shape, TensorSpec, intersect, within

_LETTERS = "abcdefgh"


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
    return [*split_letters([operand], [_LETTERS[: len(shape)]], skip="-"), *picks_from((0,), 1)]


def _run_expand(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0]


def _gradient_expand(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs)
        builder.give(0, summed_to(builder, "dx", builder.output_gradient(), x.shape))


def _moved(box: Box, by: Sequence[int]) -> Box:
    return tuple((begin + step, end + step) for (begin, end), step in zip(box, by, strict=True))


def _copy_shared(source: Array, source_box: Box, target: Array, target_box: Box) -> None:
    """Copy the elements that both pieces hold, both boxes in the same coordinates."""
    shared = intersect(source_box, target_box)
    if shared is not None:
        target[within(shared, target_box)] = source[within(shared, source_box)]


def _infer_concat(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    axis, first = int_attr(attrs, "axis"), inputs[0]
    expect(0 <= axis < len(first.shape), "concat along no dim", got=axis, expected=f"a dim of {first.shape}")
    rest = [(spec.dtype, *spec.shape[:axis], *spec.shape[axis + 1 :]) for spec in inputs]
    alike = all(other == rest[0] for other in rest)
    expect(alike, "concat shapes do not compose", got=shapes(inputs), expected=f"all alike but for dim {axis}")
    joined = sum(spec.shape[axis] for spec in inputs)
    return (TensorSpec((*first.shape[:axis], joined, *first.shape[axis + 1 :]), first.dtype),)


def _signatures_concat(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Operands are whole along the joined dim: from a piece, a rank could not tell where the next one begins."""
    axis, count = int_attr(attrs, "axis"), len(inputs)
    others = [d for d in range(len(outputs[0].shape)) if d != axis]
    return [
        *(AxisSignature((Split(d),) * count, (Split(d),)) for d in others),
        AxisSignature((B,) * count, (Split(axis),)),
        *picks_from(range(count), count),
    ]


def _run_concat(call: Call) -> None:
    axis, out = int_attr(call.attrs, "axis"), call.outputs[0]
    (low, high), origin = call.output_boxes[0][axis], 0
    along = (slice(None),) * axis
    for x, box in zip(call.inputs, call.input_boxes, strict=True):
        begin, end = max(origin, low), min(origin + box[axis][1], high)
        if begin < end:
            out[(*along, slice(begin - low, end - low))] = x[(*along, slice(begin - origin, end - origin))]
        origin += box[axis][1]


def _gradient_concat(builder: GradientBuilder) -> None:
    axis, origin = int_attr(builder.op.attrs, "axis"), 0
    for position, spec in enumerate(builder.specs(builder.op.inputs)):
        begin = tuple(origin * (d == axis) for d in range(len(spec.shape)))
        if builder.wants(position):
            attrs = {"begin": begin, "end": tuple(b + size for b, size in zip(begin, spec.shape, strict=True))}
            builder.give(position, builder.emit(f"dx{position}", "slice", (builder.output_gradient(),), attrs))
        origin += spec.shape[axis]


def _infer_slice(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    shape, begin, end = inputs[0].shape, ints_attr(attrs, "begin"), ints_attr(attrs, "end")
    legal = len(begin) == len(end) == len(shape) and all(
        0 <= b < e <= size for b, e, size in zip(begin, end, shape, strict=True)
    )
    expect(legal, "a slice that is not there", got=(begin, end), expected=f"0 <= begin < end <= {shape}, dim by dim")
    return (TensorSpec(tuple(e - b for b, e in zip(begin, end, strict=True)), inputs[0].dtype),)


def _signatures_cut(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Of a slice and of its adjoint: pieces are read into terms, or written from the whole; other dims are split alike.

    On later axes of a mesh a cut dim can look whole: where the slice begins at 0 and a piece is just as long. Then
    splitting both alike is right too, because a rank copies by coordinates.
    """
    begin, found = ints_attr(attrs, "begin"), []
    for d, (read, written) in enumerate(zip(inputs[0].shape, outputs[0].shape, strict=True)):
        found += [AxisSignature((Split(d),), (P,)), AxisSignature((B,), (Split(d),))]
        if read == written and begin[d] == 0:
            found.append(AxisSignature((Split(d),), (Split(d),)))
    return [*found, *(picks_from((0,), 1) if outputs[0].size <= inputs[0].size else [linear_in([0], 1)])]


def _run_slice(call: Call) -> None:
    x, out = call.inputs[0], call.outputs[0]
    begin = ints_attr(call.attrs, "begin")
    out[...] = 0
    _copy_shared(x, call.input_boxes[0], out, _moved(call.output_boxes[0], begin))


def _gradient_slice(builder: GradientBuilder) -> None:
    if builder.wants(0):
        (x,) = builder.specs(builder.op.inputs)
        attrs = {"begin": ints_attr(builder.op.attrs, "begin"), "shape": x.shape}
        builder.give(0, builder.emit("dx", "slice_grad", (builder.output_gradient(),), attrs))


def _infer_slice_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    shape, begin, found = ints_attr(attrs, "shape"), ints_attr(attrs, "begin"), inputs[0].shape
    legal = len(shape) == len(begin) == len(found) and all(
        b >= 0 and b + f <= size for b, f, size in zip(begin, found, shape, strict=True)
    )
    expect(legal, "a slice that is not there", got=(begin, found), expected=f"within {shape}, dim by dim")
    return (TensorSpec(shape, inputs[0].dtype),)


def _run_slice_grad(call: Call) -> None:
    """The gradient where the slice was, zeros around it."""
    grad, dx = call.inputs[0], call.outputs[0]
    begin = ints_attr(call.attrs, "begin")
    dx[...] = 0
    _copy_shared(grad, _moved(call.input_boxes[0], begin), dx, call.output_boxes[0])


def _no_flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _nbytes_slice(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * outputs[0].nbytes


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
    OpDef(
        "concat",
        _infer_concat,
        _no_flop,
        _signatures_concat,
        _run_concat,
        _gradient_concat,
        examples=(
            Example((TensorSpec((7, 5)), TensorSpec((7, 4))), attrs={"axis": 1}),
            Example((TensorSpec((4, 5)), TensorSpec((4, 5)), TensorSpec((7, 5))), attrs={"axis": 0}),
        ),
    ),
    OpDef(
        "slice",
        _infer_slice,
        _no_flop,
        _signatures_cut,
        _run_slice,
        _gradient_slice,
        nbytes=_nbytes_slice,
        examples=(
            Example((TensorSpec((7, 9)),), attrs={"begin": (0, 5), "end": (7, 9)}),
            Example((TensorSpec((9, 5)),), attrs={"begin": (0, 0), "end": (4, 5)}),
        ),
    ),
    OpDef(
        "slice_grad",
        _infer_slice_grad,
        _no_flop,
        _signatures_cut,
        _run_slice_grad,
        examples=(
            Example((TensorSpec((7, 4)),), attrs={"begin": (0, 5), "shape": (7, 9)}),
            Example((TensorSpec((4, 5)),), attrs={"begin": (0, 0), "shape": (9, 5)}),
        ),
    ),
)
