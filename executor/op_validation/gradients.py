"""Gradients: what the rule of an op gives, against central finite differences in double precision.

The op's first result is weighed with random weights and summed; the weights are then the gradient that the rule is
given (where the result is one figure the weight is 1, for a loss takes its own gradient to be that).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from executor.op_validation.completeness import read_reasons, reason_for
from executor.op_validation.pieces import FLOOR, Array
from executor.op_validation.subject import OneRank, Subject, as_piece, whole_box
from executor.runtime.kernels.base import Kernels
from strategy.base.errors import present
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.gradient import GradientBuilder
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.tensor import Rate

RELATIVE = 1e-4
MOST_CELLS = 24
"""So many elements of an operand are differentiated one by one; of larger ones a random choice."""
_STEP = 1e-6


def gradient_problems(subject: Subject, kernels: Kernels, *, seed: int = 0) -> Iterator[str]:
    """In what a gradient rule differs from finite differences; nothing where there is no rule, or no float result.

    Differences in half precision are steps of their rounding, so their gradients are tried in double precision alone.
    """
    specs = subject.graph.specs((*subject.op.inputs, subject.op.outputs[0]))
    result = specs[-1]
    rounded = any(spec.dtype.is_half for spec in specs)
    if op_definition(subject.kind).gradient is None or not result.dtype.is_float or rounded:
        return
    rng = np.random.default_rng((seed, 17))
    operands = subject.draw(seed, kernels).inputs[0]
    shape = result.shape
    weights = np.asarray(rng.uniform(0.5, 1.5, shape) * rng.choice((-1.0, 1.0), shape)) if shape else np.ones(())
    if result.ragged is not None:
        weights = weights * (subject.draw(seed, kernels).results[0] != 0).any(axis=-1, keepdims=True)
    graph, gradients = backward_of(subject)
    values = run_whole(graph, {**dict(zip(subject.op.inputs, operands, strict=True)), "seed": weights}, kernels)
    for position, name in enumerate(subject.op.inputs):
        if not subject.graph.values[name].spec.dtype.is_float:
            continue
        if reason_for(read_reasons(), subject.kind, gradient_text(position)):
            continue
        if name not in gradients:
            yield f"{subject.kind}, example {subject.number}: the rule gives input {position} no gradient"
            continue
        found = values[gradients[name]]
        if found.shape != operands[position].shape:
            yield f"{subject.kind}, example {subject.number}: gradient of input {position} has shape {found.shape}"
            continue
        yield from _compare(subject, kernels, operands, position, weights, found, rng)


def gradient_text(position: int) -> str:
    """How `strategy/graph/ops/completeness.toml` calls a gradient that is none of the op alone."""
    return f"gradient of input {position}"


def backward_of(subject: Subject) -> tuple[Graph, dict[str, str]]:
    """The op and what its rule appends; input name -> name of its gradient."""
    builder = GraphBuilder()
    for value in subject.graph.values.values():
        if value.role is not Role.COMPUTED:
            builder.declare(value)
    op = subject.op
    builder.add(op.name, op.kind, op.inputs, labels=op.labels, updates=op.updates, attrs=op.attrs)
    builder.declare(replace(subject.graph.values[op.outputs[0]], name="seed", rate=Rate.MICRO_BATCH, role=Role.INPUT))
    floats = frozenset(name for name in op.inputs if subject.graph.values[name].spec.dtype.is_float)
    state = GradientBuilder(builder, builder.ops[0], floats, {op.outputs[0]: ["seed"]})
    present(op_definition(op.kind).gradient, f"a gradient of {op.kind}")(state)
    return builder.build(), {name: state.summed(name) for name in op.inputs if name in state.gradients}


def run_whole(graph: Graph, values: dict[str, Array], kernels: Kernels) -> dict[str, Array]:
    """All values of a graph on one device, op after op, from its inputs."""
    found = dict(values)
    for op in graph.ops:
        found.update(zip(op.outputs, _run(graph, op, found, kernels), strict=True))
    return found


def _run(graph: Graph, op: Op, values: dict[str, Array], kernels: Kernels) -> list[Array]:
    xp = kernels.xp
    specs = graph.specs(op.outputs)
    outputs = tuple(piece_of(xp, spec, whole_box(spec)) for spec in specs)
    operands = zip(graph.specs(op.inputs), op.inputs, strict=True)
    kernels.bind(
        op_definition(op.kind),
        Call(
            xp,
            op.attrs,
            tuple(as_piece(xp, spec, whole_box(spec), values[name]) for spec, name in operands),
            outputs,
            (),
            tuple(whole_box(spec) for spec in graph.specs(op.inputs)),
            tuple(whole_box(spec) for spec in specs),
            Workspace(xp),
        ),
    ).run()
    found = []
    for piece in outputs:
        array = piece.dense() if isinstance(piece, Rows) else piece
        found.append(np.empty(array.shape, array.dtype))
        kernels.download(array, found[-1])
        kernels.wait()
    return found


def _compare(
    subject: Subject,
    kernels: Kernels,
    operands: tuple[Array, ...],
    position: int,
    weights: Array,
    found: Array,
    rng: np.random.Generator,
) -> Iterator[str]:
    """Element by element, and once along a random direction, which none of them escapes."""

    def weighed(at: Array) -> float:
        graph, op = subject.graph, subject.op
        boxes = [[whole_box(spec) for spec in graph.specs(names)] for names in (op.inputs, op.outputs)]
        rank = OneRank(subject, kernels, boxes[0], boxes[1], ())
        rank.act((*operands[:position], at, *operands[position + 1 :]))
        return float((rank.results()[0] * weights).sum())

    def slope(direction: Array) -> float:
        here = operands[position]
        return (weighed(here + _STEP * direction) - weighed(here - _STEP * direction)) / (2 * _STEP)

    size = found.size
    cells = range(size) if size <= MOST_CELLS else sorted(rng.choice(size, MOST_CELLS, replace=False).tolist())
    directions = [np.asarray(rng.choice((-1.0, 1.0), found.shape) * rng.uniform(0.5, 1.0, found.shape))]
    for cell in cells:
        directions.append(np.zeros(found.shape))
        directions[-1].reshape(-1)[cell] = 1.0
    if subject.graph.values[subject.op.inputs[position]].spec.ragged is not None:
        directions = [direction * (operands[position] != 0) for direction in directions]
    scale = max(float(np.abs(found).max()), FLOOR)
    for direction in directions:
        wanted, given = slope(direction), float((found * direction).sum())
        reach = float(np.abs(direction).sum()) ** 0.5
        if not abs(given - wanted) <= RELATIVE * max(abs(wanted), scale * reach):
            where = f"{subject.kind}, example {subject.number}, input {position}"
            yield f"{where}: gradient {given:.6g}, finite difference {wanted:.6g}"
            return
