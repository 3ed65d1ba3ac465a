"""Subject: one op on one of its examples, with operands drawn and the result on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.runtime.kernels.base import Kernels
from strategy.base.errors import InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op, Role, Value
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import ArrayModule, Call, Example, Workspace
from strategy.sbp.placement import read_space
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.tensor import Box, DType, Rate, TensorSpec, box_shape

Array = npt.NDArray[Any]

ACTS = 3
"""Acts in a row of an op that keeps something from act to act: an accumulator, an update."""
_DEFAULT_RANGE = (-2.0, 2.0)
_LARGEST_WHOLE = 8
_GOLDEN = 0.6180339887498949


@dataclass(slots=True)
class Subject:
    """An op alone in a graph, in double precision: inputs `x0`, `x1`, ..., variables `u0`, ..., outputs.

    What is drawn is remembered.
    """

    kind: str
    number: int
    """Of the example."""
    example: Example
    graph: Graph
    drawn: dict[int, Drawn] = field(default_factory=dict)

    @property
    def op(self) -> Op:
        """The op."""
        return self.graph.ops[0]

    @property
    def acts(self) -> int:
        """How often it acts in a trial."""
        return ACTS if op_definition(self.kind).accumulates or self.op.updates else 1

    def draw(self, seed: int, kernels: Kernels) -> Drawn:
        """Operands and results of one seed, computed once."""
        if seed not in self.drawn:
            self.drawn[seed] = _drawn(self, np.random.default_rng((seed, self.number)), kernels)
        return self.drawn[seed]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Operands of every act and the variables before the first, then outputs and variables after the last."""

    inputs: tuple[tuple[Array, ...], ...]
    updates: tuple[Array, ...]
    results: tuple[Array, ...]


def subjects_of(kind: str) -> list[Subject]:
    """One per example of a kind.

    Raises:
        InputError: unknown kind, or an example that its own shape rule refuses.
    """
    found = []
    for number, example in enumerate(op_definition(kind).examples):
        builder = GraphBuilder()
        for position, spec in enumerate(example.inputs):
            builder.declare(Value(f"x{position}", _double(spec), Rate.MICRO_BATCH, Role.INPUT, space=read_space(kind)))
        for position, spec in enumerate(example.updates):
            builder.declare(Value(f"u{position}", _double(spec), Rate.STEP, Role.VARIABLE, "zeros"))
        inputs = [f"x{i}" for i in range(len(example.inputs))]
        updates = [f"u{i}" for i in range(len(example.updates))]
        labels = [str(i) for i in range(1, 16)]
        builder.add("op", kind, inputs, labels=labels, updates=updates, attrs=example.attrs)
        found.append(Subject(kind, number, example, builder.build()))
    return found


def _double(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype=DType.FLOAT64) if spec.dtype.is_float else spec


def draw_operand(
    spec: TensorSpec, bounds: tuple[float, float] | None, position: int, rng: np.random.Generator
) -> Array:
    """Floats evenly spaced, in random order, shifted by position so that no two operands tie; integers uniform.

    Codes of 8 bits are whole figures that both of their dtypes hold; those of 4 any pair; scales small powers of two.

    Raises:
        InputError: an integer operand without range.
    """
    if spec.dtype is DType.FLOAT4_E2M1_X2:
        return rng.integers(0, 256, spec.shape, spec.dtype.numpy)
    if spec.dtype is DType.FLOAT8_E8M0:
        return np.asarray(np.exp2(rng.integers(-3, 4, spec.shape)).astype(spec.dtype.numpy))
    if spec.dtype.is_code:
        return np.asarray(rng.integers(-_LARGEST_WHOLE, _LARGEST_WHOLE + 1, spec.shape).astype(spec.dtype.numpy))
    if not spec.dtype.is_float:
        if bounds is None:
            raise InputError("an integer operand of an example has no range", where=f"position {position}")
        return rng.integers(int(bounds[0]), int(bounds[1]), spec.shape, spec.dtype.numpy)
    low, high = bounds or _DEFAULT_RANGE
    shift = (_GOLDEN * (position + 1)) % 1.0
    steps = (rng.permutation(spec.size) + shift) / spec.size
    return np.asarray((low + (high - low) * steps).reshape(spec.shape), spec.dtype.numpy)


def _drawn(subject: Subject, rng: np.random.Generator, kernels: Kernels) -> Drawn:
    example, op = subject.example, subject.op
    specs = subject.graph.specs((*op.inputs, *op.updates))
    count = len(op.inputs)

    def draw(positions: range) -> tuple[Array, ...]:
        return tuple(draw_operand(specs[i], example.ranges.get(i), i, rng) for i in positions)

    inputs = tuple(_derived(example, draw(range(count))) for _ in range(subject.acts))
    updates = draw(range(count, len(specs)))
    whole = [whole_box(spec) for spec in (*subject.graph.specs(op.inputs), *subject.graph.specs(op.outputs))]
    rank = OneRank(subject, kernels, whole[:count], whole[count:], updates)
    for operands in inputs:
        rank.act(operands)
    return Drawn(inputs, updates, rank.results())


def _derived(example: Example, drawn: tuple[Array, ...]) -> tuple[Array, ...]:
    """Operands as drawn, but ragged ones with few rows, and those that are functions of others."""
    thinned = tuple(
        _thinned(spec, array) if i not in example.derive else array
        for i, (spec, array) in enumerate(zip(example.inputs, drawn, strict=True))
    )
    return tuple(
        np.asarray(example.derive[i](thinned), array.dtype) if i in example.derive else array
        for i, array in enumerate(thinned)
    )


def _thinned(spec: TensorSpec, drawn: Array) -> Array:
    """Of a ragged operand, every token's rows of as many experts as it may have, or one fewer; others are zero."""
    if spec.ragged is None:
        return drawn
    order = np.argsort(drawn[..., 0], axis=0)
    most = spec.ragged.most - (order[0] == 0)
    return np.asarray(drawn * (np.argsort(order, axis=0) < most)[..., None])


def whole_box(spec: TensorSpec) -> Box:
    """The box of a whole tensor."""
    return tuple((0, size) for size in spec.shape)


def as_piece(xp: ArrayModule, spec: TensorSpec, box: Box, array: Array) -> Any:
    """A host array as an operand of an op; of a ragged one, the rows that are not all zero."""
    if spec.ragged is None:
        return xp.asarray(np.array(array, order="C"))
    rows = piece_of(xp, spec, box)
    rows.hold_dense(xp.asarray(array))
    return rows


def _nonsense(xp: ArrayModule, spec: TensorSpec, box: Box) -> Any:
    """A result before the op has written it; a ragged one is full of rows that nobody sent."""
    piece = piece_of(xp, spec, box)
    if isinstance(piece, Rows):
        piece.hold(xp.arange(spec.piece(box_shape(box)).most_rows))[...] = np.nan
    else:
        piece[...] = np.nan if spec.dtype.is_float else np.array(-7).astype(piece.dtype)
    return piece


class OneRank:
    """One rank's outputs, variables and scratch in a trial; outputs begin as nonsense, and must be written in full."""

    def __init__(
        self,
        subject: Subject,
        kernels: Kernels,
        input_boxes: Sequence[Box],
        output_boxes: Sequence[Box],
        updates: Sequence[Array],
    ) -> None:
        self._definition = op_definition(subject.kind)
        self._kernels = kernels
        xp, op = kernels.xp, subject.op
        self._outputs = tuple(
            _nonsense(xp, spec, box) for spec, box in zip(subject.graph.specs(op.outputs), output_boxes, strict=True)
        )
        self._inputs = tuple(zip(subject.graph.specs(op.inputs), input_boxes, strict=True))
        self._updates = tuple(xp.asarray(array.copy()) for array in updates)
        self._call = Call(
            xp, op.attrs, (), self._outputs, self._updates, tuple(input_boxes), tuple(output_boxes), Workspace(xp)
        )
        self._acts = 0

    def act(self, inputs: Sequence[Array]) -> None:
        """The next act, on these pieces."""
        call = self._call
        call.inputs = tuple(
            as_piece(self._kernels.xp, spec, box, array)
            for (spec, box), array in zip(self._inputs, inputs, strict=True)
        )
        call.number = self._acts
        call.first_of_piece = self._acts == 0 or not self._definition.accumulates
        self._acts += 1
        self._kernels.bind(self._definition, call).run()

    def results(self) -> tuple[Array, ...]:
        """Outputs, ragged ones written out, then variables, on the host."""
        found = []
        for piece in (*self._outputs, *self._updates):
            array = piece.dense() if isinstance(piece, Rows) else piece
            host = np.empty(array.shape, array.dtype)
            self._kernels.download(array, host)
            self._kernels.wait()
            found.append(host)
        return tuple(found)
