"""Parts of tensors: `concat`, `slice` with its adjoint.

Terms of every reduction pass through all of them (through the adjoint of a slice, which writes zeros, those of sums).
`slice` and its adjoint copy by logical coordinates: a rank copies what its pieces of operand and result share and
leaves zeros elsewhere. So a cut dim may be split on either side, and the pieces that are read give terms of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
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
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import Box, TensorSpec, intersect, within


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
    rest = [(spec.dtype, len(spec.shape), *spec.shape[:axis], *spec.shape[axis + 1 :]) for spec in inputs]
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


OPS = (
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
        piecewise=True,
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
