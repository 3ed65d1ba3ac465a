"""The reference: a graph run on one device, op after op, by the ops' own meanings. Every plan must compute the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.graph.graph import Graph, Op, Role, act_rate
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.half_precision import run_act
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.tensor import Box, Rate, TensorSpec

Array = npt.NDArray[Any]


def run_graph(
    graph: Graph,
    inputs: Sequence[Mapping[str, Array]],
    variables: dict[str, Array],
    *,
    step: int = 0,
    seen: Callable[[Mapping[str, Array]], None] = lambda values: None,
) -> dict[str, Array]:
    """Run one step of `graph` and update `variables` in place.

    Args:
        graph: Of a training step, or any graph that `check_graph` accepts.
        inputs: The graph's inputs by name, one mapping per micro-batch.
        variables: Variable name -> array, rewritten by the ops that update it.
        step: Steps done before this one; optimisers correct their moments by it, and acts are counted on from it.
        seen: Is shown all values after each micro-batch.

    Returns:
        Value name -> array for all values: step values, variables, and the micro-batch values of the last micro-batch;
        ragged ones written out, zero where no row is.
    """
    values: dict[str, Array] = dict(variables)
    before, each, after = _by_rate(graph, len(inputs))
    for op in before:
        _run_op(graph, op, values, step, first_of_piece=True)
    for position, micro_batch in enumerate(inputs):
        values.update(micro_batch)
        for op in each:
            _run_op(graph, op, values, step * len(inputs) + position, first_of_piece=position == 0)
        seen(_written_out(values))
    for op in after:
        _run_op(graph, op, values, step, first_of_piece=True)
    return _written_out(values)


def _written_out(values: Mapping[str, Any]) -> dict[str, Array]:
    return {name: held.dense() if isinstance(held, Rows) else held for name, held in values.items()}


def start_variables(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Every variable as its `init` says, drawn in graph order."""
    return {v.name: _start(v.spec, v.init, rng) for v in graph.with_role(Role.VARIABLE)}


def random_batch(graph: Graph, vocabulary: int, rng: np.random.Generator) -> dict[str, Array]:
    """One micro-batch of random token ids for every input of a language model."""
    return {v.name: rng.integers(0, vocabulary, v.spec.shape, v.spec.dtype) for v in graph.with_role(Role.INPUT)}


def _start(spec: TensorSpec, init: str, rng: np.random.Generator) -> Array:
    if init in ("zeros", "ones"):
        return np.full(spec.shape, float(init == "ones"), spec.dtype)
    constant = re.fullmatch(r"constant\((.+)\)", init)
    if constant is not None:
        return np.full(spec.shape, float(constant[1]), spec.dtype)
    match = re.fullmatch(r"normal\((.+)\)", init)
    assert match is not None, init
    return np.asarray(rng.standard_normal(spec.shape) * float(match[1]), spec.dtype)


def _by_rate(graph: Graph, num_micro_batches: int) -> tuple[list[Op], list[Op], list[Op]]:
    """Ops that run once before the micro-batches, with each of them, and once after the last."""
    before: list[Op] = []
    each: list[Op] = []
    after: list[Op] = []
    waiting: set[str] = set()  # step values that are complete only after the last micro-batch
    for op in graph.ops:
        if act_rate(graph, op) is Rate.MICRO_BATCH:
            assert not op.updates or num_micro_batches == 1, f"{op.name} updates once per micro-batch"
            each.append(op)
            waiting.update(name for name in op.outputs if graph.values[name].rate is Rate.STEP)
        elif op.updates or waiting.intersection(op.inputs):
            after.append(op)
            waiting.update(op.outputs)
        else:
            before.append(op)
    return before, each, after


def _run_op(graph: Graph, op: Op, values: dict[str, Array], number: int, *, first_of_piece: bool) -> None:
    definition = op_definition(op.kind)
    if first_of_piece or not definition.accumulates:
        values.update({n: piece_of(np, graph.values[n].spec, _whole(graph.values[n].spec)) for n in op.outputs})
    run_act(
        definition,
        Call(
            xp=np,
            attrs=op.attrs,
            inputs=tuple(values[name] for name in op.inputs),
            outputs=tuple(values[name] for name in op.outputs),
            updates=tuple(values[name] for name in op.updates),
            input_boxes=tuple(_whole(graph.values[name].spec) for name in op.inputs),
            output_boxes=tuple(_whole(graph.values[name].spec) for name in op.outputs),
            workspace=Workspace(np),
            number=number,
            first_of_piece=first_of_piece,
        ),
    )


def _whole(spec: TensorSpec) -> Box:
    return tuple((0, size) for size in spec.shape)
