"""What the ops of a mixture of experts share: one trilinear form of rows, tokens and weights, read in three ways.

    dispatch  tokens, choices (, weights)  -> rows      a row per choice, times its weight
    combine   rows, choices (, weights)    -> tokens    the rows of a token's choices, added up
    inner     rows, choices, tokens        -> products  <row, token> per choice: what a weight is worth

The derivative of each by an operand is another of the three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import AxisSignature, Specs, linear_in, split_letters
from strategy.graph.ops.gradient import GradientBuilder

Signatures = Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]
Gradient = Callable[[GradientBuilder], None]


def routed(operands: Sequence[str], result: str) -> Signatures:
    """Splits by letter (`split_letters`); terms pass through either factor. A third operand may be absent."""

    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        arity = len(inputs)
        factors = (0, 2)[: arity - 1]
        return [*split_letters(operands[:arity], [result]), *(linear_in([factor], arity) for factor in factors)]

    return signatures


def gradients(family: str, attrs_of: Callable[[GradientBuilder, str], Attrs]) -> tuple[Gradient, Gradient, Gradient]:
    """The gradients of `<family>_dispatch`, `_combine` and `_inner`.

    Args:
        family: how the three kinds begin.
        attrs_of: the attributes of a kind that the gradient of the builder's op emits.
    """

    def emit(builder: GradientBuilder, label: str, which: str, inputs: Sequence[str]) -> str:
        kind = f"{family}_{which}"
        return builder.emit(label, kind, tuple(inputs), attrs_of(builder, kind))

    def dispatch(builder: GradientBuilder) -> None:
        dy, (tokens, choices, *weights) = builder.output_gradient(), builder.op.inputs
        if builder.wants(0):
            builder.give(0, emit(builder, "dx", "combine", (dy, choices, *weights)))
        if weights and builder.wants(2):
            builder.give(2, emit(builder, "dweights", "inner", (dy, choices, tokens)))

    def combine(builder: GradientBuilder) -> None:
        dy, (rows, choices, *weights) = builder.output_gradient(), builder.op.inputs
        if builder.wants(0):
            builder.give(0, emit(builder, "drows", "dispatch", (dy, choices, *weights)))
        if weights and builder.wants(2):
            builder.give(2, emit(builder, "dweights", "inner", (rows, choices, dy)))

    def inner(builder: GradientBuilder) -> None:
        dy, (rows, choices, tokens) = builder.output_gradient(), builder.op.inputs
        if builder.wants(0):
            builder.give(0, emit(builder, "drows", "dispatch", (tokens, choices, dy)))
        if builder.wants(2):
            builder.give(2, emit(builder, "dx", "combine", (rows, choices, dy)))

    return dispatch, combine, inner
