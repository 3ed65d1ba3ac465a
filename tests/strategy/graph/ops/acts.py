"""One act of an op, on whole tensors or on pieces with their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.graph.graph import Attrs, Op
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.sbp.tensor import Box, DType, Shape, TensorSpec, box_shape

Array = npt.NDArray[Any]


def run_pieces(op: Op, arrays: Sequence[Array], boxes: Sequence[Box], out_boxes: Sequence[Box]) -> list[Array]:
    """One act; outputs (which start as NaN), then variables."""
    outputs = [np.full(box_shape(box), np.nan) for box in out_boxes]
    inputs, updates = arrays[: len(op.inputs)], [array.copy() for array in arrays[len(op.inputs) :]]
    call = Call(
        np, op.attrs, tuple(inputs), tuple(outputs), tuple(updates), tuple(boxes), tuple(out_boxes), Workspace(np)
    )
    op_definition(op.kind).run(call)
    return [*outputs, *updates]


def full_box(shape: Shape) -> Box:
    return tuple((0, size) for size in shape)


def whole(kind: str, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
    """Outputs of an op on one device."""
    specs = [TensorSpec(array.shape, DType(str(array.dtype))) for array in inputs]
    outputs = op_definition(kind).infer(specs, (), attrs)
    names = [tuple(f"{side}{i}" for i in range(len(many))) for side, many in (("x", specs), ("y", outputs))]
    op = Op("op", kind, names[0], names[1], attrs=attrs)
    return run_pieces(op, inputs, [full_box(s.shape) for s in specs], [full_box(s.shape) for s in outputs])
