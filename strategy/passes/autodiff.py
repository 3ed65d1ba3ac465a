"""Reverse-mode differentiation of a graph: for every op, its `gradient` rule appends the backward ops.

Gradients of a computed value with several consumers are added. The loss is a sum and its own gradient is one, so the
loss op starts the walk without reading an output gradient.
"""

from __future__ import annotations

from collections.abc import Collection

from strategy.base.errors import GraphError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Op, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.traits import PrecisionClass


def differentiate(graph: GraphBuilder, loss: str, *, frozen: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Append the backward pass of `loss`; gives variable name -> the terms of its gradient, in variable order.

    A variable that is used several times has a term per use; whoever wants the gradient adds them up. Variables that
    are `frozen` have none, and integers pass none on.

    Raises:
        GraphError: an op between a variable and the loss has no gradient, or none through the output that is used; or
            the loss is not what a loss op writes.
    """
    forward = list(graph.ops)
    depends = {value.name for value in graph.variables() if value.name not in frozen}
    for op in forward:
        if depends.intersection(op.inputs):
            depends.update(name for name in op.outputs if graph.spec(name).dtype.is_float)
    reaches_loss = {loss}
    for op in reversed(forward):
        if reaches_loss.intersection(op.outputs):
            reaches_loss.update(op.inputs)
    needed = frozenset(depends & reaches_loss)
    converted = (op for op in forward if op_definition(op.kind).precision is PrecisionClass.CONVERTS)
    casts = {op.outputs[0]: op.inputs[0] for op in converted if _is_variable(graph, op.inputs[0])}
    gradients: dict[str, list[str]] = {}
    last: dict[str, tuple[Op, int]] = {}
    for op in reversed(forward):
        for name in op.outputs[1:]:
            if name == loss or name in gradients:
                raise GraphError(
                    [f"op {op.name}: {op.kind} has a gradient through {op.outputs[0]}, not through {name}"]
                )
        if loss not in op.outputs and gradients.keys().isdisjoint(op.outputs[:1]):
            continue
        rule = op_definition(op.kind).gradient
        if rule is None:
            raise GraphError([f"op {op.name}: {op.kind} has no gradient, yet lies between a parameter and the loss"])
        rule(GradientBuilder(graph, op, needed, gradients, last, casts))
    return {value.name: tuple(gradients[value.name]) for value in graph.variables() if value.name in gradients}


def _is_variable(graph: GraphBuilder, name: str) -> bool:
    return graph.values[name].role is Role.VARIABLE
