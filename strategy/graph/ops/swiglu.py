"""SwiGLU as one op (Shazeer 2020, arXiv:2002.05202): silu(gate) up, without what lies between.

    swiglu       gate[...], up[...]      -> gate sigmoid(gate) up
    swiglu_grad  dy, gate, up            -> dgate, dup

It reads two tensors and writes one, where `silu` and `mul` read three and write two; and nothing but gate and up is
kept for the backward pass. Operands may be ragged rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, elementwise_signatures, linear_in
from strategy.graph.ops.cache_blocks import by_elements, on_operands
from strategy.graph.ops.elementwise import RAGGED, SPECS, flop_per_element, infer_float
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import on_rows, same_rows
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import Fusion
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import B, P
from strategy.sbp.tensor import TensorSpec


def _sigmoid(call: Call, x: Array) -> Array:
    """(1 + tanh(x / 2)) / 2, which overflows nowhere."""
    xp, found = call.xp, call.workspace.get("sigmoid", x.shape, x.dtype)
    xp.multiply(x, 0.5, out=found)
    xp.tanh(found, out=found)
    found *= 0.5
    found += 0.5
    return found


def _run(call: Call) -> None:
    (gate, up), out = call.inputs, call.outputs[0]
    call.xp.multiply(_sigmoid(call, gate), gate, out=out)
    out *= up


def _run_grad(call: Call) -> None:
    """dgate = dy up s (1 + gate (1 - s)); dup = dy gate s."""
    (dy, gate, up), (dgate, dup) = call.inputs, call.outputs
    xp, share = call.xp, _sigmoid(call, gate)
    xp.multiply(dy, gate, out=dup)
    dup *= share
    xp.subtract(1.0, share, out=dgate)
    dgate *= gate
    dgate += 1.0
    dgate *= share
    dgate *= up
    dgate *= dy


_grad = by_elements(_run_grad, on_operands(row_kernels.swiglu_slope))


def _run_grad_on_rows(call: Call) -> None:
    """Both gradients have the rows that all operands have."""
    dgate, dup = call.outputs
    if not isinstance(dgate, Rows):
        _grad(call)
        return

    def both(inner: Call) -> None:
        held = dup.hold(dgate.cells)
        _grad(replace(inner, outputs=(*inner.outputs, held)))

    on_rows(both)(replace(call, outputs=(dgate,)))


def _gradient(builder: GradientBuilder) -> None:
    operands = (builder.output_gradient(), *builder.op.inputs)
    for position, gradient in enumerate(builder.emit_many("grad", "swiglu_grad", operands, labels=("dgate", "dup"))):
        builder.give(position, gradient)


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (*infer_float(inputs, updates, attrs), inputs[0])


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 2), linear_in([1], 2)]


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    found = [*elementwise_signatures(inputs[0].shape, 3, 2), linear_in([0], 3, 2)]
    # Terms of ragged rows may lack rows, which the gradient of `up` has all the same.
    return found if inputs[0].ragged is not None else [*found, AxisSignature((B, B, P), (P, B))]


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 15 * outputs[0].size


def _rows_of_first(position: int) -> Callable[[Sequence[Array]], Array]:
    return lambda drawn: same_rows([drawn[0], drawn[position]])


def _examples(operands: int) -> tuple[Example, ...]:
    rest = {position: _rows_of_first(position) for position in range(1, operands)}
    return (*(Example((spec,) * operands) for spec in SPECS), Example((RAGGED,) * operands, derive=rest))


OPS = (
    OpDef(
        "swiglu",
        infer_float,
        flop_per_element(8),
        _signatures,
        on_rows(by_elements(_run, on_operands(row_kernels.swiglu))),
        _gradient,
        ragged=True,
        fuses=Fusion("silu", "mul"),
        scratch=scratch_like(0),
        examples=_examples(2),
    ),
    OpDef(
        "swiglu_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad_on_rows,
        ragged=True,
        scratch=scratch_like(1),
        examples=_examples(3),
    ),
)
