"""What element-wise ops share: rules of shape and cost, how terms of extremes pass, and what they are tried on."""

from __future__ import annotations

from collections.abc import Callable

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import MAX, MIN, AxisSignature, Specs, expect, shapes
from strategy.graph.ops.on_rows import ragged_spec
from strategy.sbp.tensor import TensorSpec

SPECS = TensorSpec((7, 5)), TensorSpec((4, 6, 5))
RAGGED = ragged_spec((5, 4, 4, 7), 2)


def infer_alike(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """The shape rule: operands of one shape and dtype give another."""
    alike = all(spec == inputs[0] for spec in inputs)
    expect(alike, "operands differ", got=shapes(inputs), expected="one shape and dtype")
    return (inputs[0],)


def infer_float(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """The shape rule of what is defined on floats alone."""
    expect(inputs[0].dtype.is_float, "not a tensor of floats", got=inputs[0].dtype, expected="a dtype of floats")
    return infer_alike(inputs, updates, attrs)


def flop_per_element(count: int) -> Callable[[Specs, Specs, Attrs], int]:
    """The cost rule: so many FLOPs per element of the result."""
    return lambda inputs, outputs, attrs: count * outputs[0].size


def extremes(*, increasing: bool) -> list[AxisSignature]:
    """P(max) and P(min) pass through an op of one operand; a falling one swaps them."""
    pairs = ((MAX, MAX), (MIN, MIN)) if increasing else ((MAX, MIN), (MIN, MAX))
    return [AxisSignature((read,), (written,)) for read, written in pairs]
