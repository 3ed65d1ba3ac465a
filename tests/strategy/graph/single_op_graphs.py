"""One small graph of a single op per kind and shape: what the tests of ops and signatures run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.op_validation.subject import Subject, subjects_of
from executor.runtime.kernels.numpy import NumpyKernels
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Role, Value
from strategy.graph.ops import REGISTRY, op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.sbp.placement import read_space
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.tensor import Box, DType, Rate, Shape, TensorSpec

Array = npt.NDArray[Any]
ADAMW: Attrs = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}


@dataclass(frozen=True)
class SingleOpGraph:
    """One op on tensors of given shapes. Input `i` is made of integers below `integers[i]` where that is given."""

    kind: str
    inputs: tuple[Shape, ...]
    attrs: Attrs = field(default_factory=dict)
    updates: tuple[Shape, ...] = ()
    integers: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}{self.inputs}{dict(self.attrs) if self.kind in ('reshape', 'transpose') else ''}"

    def graph(self) -> Graph:
        """The op alone, with inputs `x0`, `x1`, ... and variables `u0`, ..."""
        builder = GraphBuilder()
        bounds = dict(self.integers)
        for i, shape in enumerate(self.inputs):
            dtype = DType.INT32 if i in bounds else DType.FLOAT64
            space = read_space(self.kind)
            builder.declare(Value(f"x{i}", TensorSpec(shape, dtype), Rate.MICRO_BATCH, Role.INPUT, space=space))
        for i, shape in enumerate(self.updates):
            builder.declare(Value(f"u{i}", TensorSpec(shape, DType.FLOAT64), Rate.STEP, Role.VARIABLE, "zeros"))
        builder.add(
            "op",
            self.kind,
            [f"x{i}" for i in range(len(self.inputs))],
            labels=tuple(map(str, range(1, 12))),
            updates=[f"u{i}" for i in range(len(self.updates))],
            attrs=self.attrs,
        )
        return builder.build()

    def draw(self, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
        """Inputs and variables; positive where the op takes a root or a quotient."""
        bounds = dict(self.integers)
        inputs: list[Array] = [
            rng.integers(0, bounds[i], shape, np.int32) if i in bounds else np.asarray(rng.standard_normal(shape))
            for i, shape in enumerate(self.inputs)
        ]
        if self.kind in ("clip_scale", "lamb_apply"):
            inputs = [np.asarray(np.abs(array) + 1) for array in inputs]
        updates: list[Array] = [np.asarray(np.abs(rng.standard_normal(shape))) for shape in self.updates]
        return inputs, updates


@dataclass(frozen=True)
class Tried:
    """An op on one of the examples that its author states; looks like a `SingleOpGraph`."""

    subject: Subject

    def __str__(self) -> str:
        return f"{self.kind}-{self.subject.number}"

    @property
    def kind(self) -> str:
        """The kind of the op."""
        return self.subject.kind

    def graph(self) -> Graph:
        """The op alone."""
        return self.subject.graph

    def draw(self, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
        """Inputs and variables."""
        drawn = self.subject.draw(int(rng.integers(1000)), NumpyKernels())
        return [array.copy() for array in drawn.inputs[0]], [array.copy() for array in drawn.updates]


def single_op_graphs() -> list[Tried]:
    """Every kind on every example."""
    return [Tried(subject) for kind in REGISTRY for subject in subjects_of(kind)]


def run_op(
    graph: Graph,
    inputs: list[Array],
    outputs: list[Array],
    updates: list[Array],
    boxes: tuple[list[Box], list[Box]],
    *,
    number: int = 0,
    workspace: Workspace | None = None,
    xp: object = np,
) -> None:
    """One act of the graph's op on one rank's pieces, ragged ones written out; `boxes` are of inputs and outputs."""
    (op,) = graph.ops
    ins = zip(graph.specs(op.inputs), inputs, boxes[0], strict=True)
    read = [_piece(spec, array, box) for spec, array, box in ins]
    outs = zip(graph.specs(op.outputs), outputs, boxes[1], strict=True)
    written = [_piece(spec, array, box, full=True) for spec, array, box in outs]
    call = Call(
        xp=xp,
        attrs=op.attrs,
        inputs=tuple(read),
        outputs=tuple(written),
        updates=tuple(updates),
        input_boxes=tuple(boxes[0]),
        output_boxes=tuple(boxes[1]),
        workspace=workspace or Workspace(xp),
        number=number,
        first_of_piece=number == 0,
    )
    op_definition(op.kind).run(call)
    for array, piece in zip(outputs, written, strict=True):
        if isinstance(piece, Rows):
            array[...] = piece.dense()


def _piece(spec: TensorSpec, array: Array, box: Box, *, full: bool = False) -> Any:
    """An array itself, or its rows that are not all zero; `full` of whatever it is filled with before it is written."""
    if spec.ragged is None:
        return array
    dtype = spec.dtype if array.dtype == spec.dtype.numpy else DType(str(array.dtype))
    rows: Rows = piece_of(np, replace(spec, dtype=dtype), box)
    if full:
        rows.hold(np.arange(rows.spec.most_rows))[...] = array.flat[0]
    else:
        rows.hold_dense(array)
    return rows
