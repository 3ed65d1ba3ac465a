"""SwiGLU within bounds, and biases of experts, as gpt-oss has them (OpenAI 2025, arXiv:2508.10925, section 2.2).

    bounded_swiglu        gate[...], up[...]          -> (u + 1) g sigmoid(alpha g), g = min(gate, limit), |u| <= limit
    bounded_swiglu_dgate  dy, gate, up                -> dgate
    bounded_swiglu_dup    dy, gate, up                -> dup
    add_by_expert         rows[e,g,s,d], bias[e,d]    -> rows[e,g,s,d]
    sum_by_expert         rows[e,g,s,d]               -> [e,d], the gradient of the bias

`up` is bounded by `limit` on both sides, the gate from above. Operands may be ragged rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    float_attr,
    linear_in,
    shapes,
    split_letters,
)
from strategy.graph.ops.elementwise import RAGGED, SPECS, flop_per_element, infer_float
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import on_rows, ragged_spec
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import TensorSpec

ALPHA = 1.702
"""Of the sigmoid, which makes of g sigmoid(alpha g) nearly a GELU."""


def _sigmoid(xp: ArrayModule, x: Array) -> Array:
    """(1 + tanh(x / 2)) / 2, which overflows nowhere."""
    return 0.5 * xp.tanh(0.5 * x) + 0.5


def _bounded(call: Call, gate: Array) -> tuple[Array, Array]:
    """The bounded gate, and its sigmoid."""
    g = call.xp.minimum(gate, float_attr(call.attrs, "limit"))
    return g, _sigmoid(call.xp, ALPHA * g)


def _run(call: Call) -> None:
    (gate, up), limit = call.inputs, float_attr(call.attrs, "limit")
    g, share = _bounded(call, gate)
    call.outputs[0][...] = (call.xp.clip(up, -limit, limit) + 1.0) * g * share


def _run_dgate(call: Call) -> None:
    """Nothing where the bound holds: dy (u + 1) s (1 + alpha g (1 - s))."""
    (dy, gate, up), limit = call.inputs, float_attr(call.attrs, "limit")
    g, share = _bounded(call, gate)
    slope = share * (1.0 + ALPHA * g * (1.0 - share)) * (gate <= limit)
    call.outputs[0][...] = dy * (call.xp.clip(up, -limit, limit) + 1.0) * slope


def _run_dup(call: Call) -> None:
    """Nothing where a bound holds: dy g s."""
    (dy, gate, up), limit = call.inputs, float_attr(call.attrs, "limit")
    g, share = _bounded(call, gate)
    call.outputs[0][...] = dy * g * share * (abs(up) <= limit)


def _gradient(builder: GradientBuilder) -> None:
    operands = (builder.output_gradient(), *builder.op.inputs)
    for position, label in enumerate(("dgate", "dup")):
        if builder.wants(position):
            kind = f"bounded_swiglu_{label}"
            builder.give(position, builder.emit(label, kind, operands, builder.op.attrs))


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return elementwise_signatures(inputs[0].shape, 2)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 3), linear_in([0], 3)]


def _infer_add(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rows, bias = inputs
    deep = rows.ragged is not None and len(rows.shape) == 4 and bias.ragged is None
    composes = deep and bias.shape == (rows.shape[0], rows.shape[3]) and bias.dtype == rows.dtype
    expected = "ragged rows[e, g, s, d], bias[e, d]"
    expect(composes, "add_by_expert shapes do not compose", got=shapes(inputs), expected=expected)
    return (rows,)


def _infer_sum(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (rows,) = inputs
    deep = rows.ragged is not None and len(rows.shape) == 4
    expect(deep, "sum_by_expert needs ragged rows", got=shapes(inputs), expected="[e, g, s, d]")
    return (TensorSpec((rows.shape[0], rows.shape[3]), rows.dtype),)


def _signatures_add(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return split_letters(["egsd", "ed"], ["egsd"])


def _signatures_sum(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*split_letters(["egsd"], ["ed"]), linear_in([0], 1)]


def _experts_of(rows: Rows) -> Array:
    """Of every row, its expert within the box."""
    bounds = rows.expert_bounds()
    return rows.xp.repeat(rows.xp.arange(len(bounds) - 1), rows.xp.diff(bounds))


def _run_add(call: Call) -> None:
    rows, bias = call.inputs
    held = call.outputs[0].hold(rows.cells)
    call.xp.add(rows.rows, bias[_experts_of(rows)], out=held)


def _run_sum(call: Call) -> None:
    (rows,), (out,) = call.inputs, call.outputs
    out[...] = 0
    bounds = rows.expert_bounds().tolist()
    for expert, (begin, end) in enumerate(itertools.pairwise(bounds)):
        out[expert] = rows.rows[begin:end].sum(axis=0)


def _gradient_add(builder: GradientBuilder) -> None:
    grad = builder.output_gradient()
    builder.give(0, grad)
    if builder.wants(1):
        builder.give(1, builder.emit("dbias", "sum_by_expert", (grad,)))


def _flop_sum(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size


_LIMIT: Attrs = {"limit": 1.2}
_ROWS, _BIAS = ragged_spec((5, 4, 4, 7), 2), TensorSpec((5, 7))


def _rows_of_first(position: int) -> Callable[[Sequence[Array]], Array]:
    """An operand of an example, written out, with the rows that the first one has."""
    return lambda drawn: drawn[position] * (drawn[0] != 0).any(axis=-1, keepdims=True)


def _examples(operands: int) -> tuple[Example, ...]:
    rest = {position: _rows_of_first(position) for position in range(1, operands)}
    dense = tuple(Example((spec,) * operands, attrs=_LIMIT) for spec in SPECS)
    return (*dense, Example((RAGGED,) * operands, attrs=_LIMIT, derive=rest))


OPS = (
    OpDef(
        "bounded_swiglu",
        infer_float,
        flop_per_element(10),
        _signatures,
        on_rows(_run),
        _gradient,
        ragged=True,
        examples=_examples(2),
    ),
    OpDef(
        "bounded_swiglu_dgate",
        infer_float,
        flop_per_element(14),
        _signatures_grad,
        on_rows(_run_dgate),
        ragged=True,
        examples=_examples(3),
    ),
    OpDef(
        "bounded_swiglu_dup",
        infer_float,
        flop_per_element(9),
        _signatures_grad,
        on_rows(_run_dup),
        ragged=True,
        examples=_examples(3),
    ),
    OpDef(
        "add_by_expert",
        _infer_add,
        flop_per_element(1),
        _signatures_add,
        _run_add,
        _gradient_add,
        ragged=True,
        expert_weights=1,
        examples=(Example((_ROWS, _BIAS)),),
    ),
    OpDef(
        "sum_by_expert",
        _infer_sum,
        _flop_sum,
        _signatures_sum,
        _run_sum,
        ragged=True,
        examples=(Example((_ROWS,)),),
    ),
)
