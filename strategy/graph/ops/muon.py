"""Muon (Jordan et al. 2024): the momentum of a matrix, made orthogonal; its kinds work on many matrices at a time.

An orthogonal factor needs the whole matrix, so a matrix is never split; instead matrices of one shape are stacked and
the stack is split, and every rank makes the directions of the matrices that it owns. With gradients that are P over
the data ranks this is one reduce-scatter of the stack and one all-gather of the directions.

    stack           n tensors [...]       -> [n, ...]
    muon_direction  stack, factor, (step); velocity -> direction [n, a, b]
    unstack         [n, ...]              -> n tensors [...]
    descend         direction, learning rate; param
"""

from __future__ import annotations

import math

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    float_attr,
    linear_in,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.optimizer import infer_update, scaled_gradient, update_signatures
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.skipped_steps import STEP, unless_skipped, without_step
from strategy.graph.ops.traits import FlopBound
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import TensorSpec

ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial a x + b x^3 + c x^5 that drives all singular values towards one, from Jordan's post."""


def _infer_stack(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    alike = bool(inputs) and all(spec == inputs[0] for spec in inputs)
    expect(alike, "stack needs tensors of one shape and dtype", got=shapes(inputs), expected="alike")
    return (TensorSpec((len(inputs), *inputs[0].shape), inputs[0].dtype),)


def _signatures_stack(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    arity, dims = len(inputs), range(len(inputs[0].shape))
    return [
        *(AxisSignature((Split(d),) * arity, (Split(d + 1),)) for d in dims),
        AxisSignature((B,) * arity, (Split(0),)),  # every rank takes those that it owns
        linear_in(range(arity), arity),
    ]


def _run_stack(call: Call) -> None:
    out, (begin, end) = call.outputs[0], call.output_boxes[0][0]
    for place, member in enumerate(call.inputs[begin:end]):
        out[place] = member


def _gradient_stack(builder: GradientBuilder) -> None:
    labels = tuple(map(str, range(len(builder.op.inputs))))
    parts = builder.emit_many("members", "unstack", (builder.output_gradient(),), labels=labels)
    for position, part in enumerate(parts):
        builder.give(position, part)


def _infer_unstack(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(len(inputs[0].shape) > 0, "unstack needs a first dim", got=inputs[0].shape, expected="[n, ...]")
    return (TensorSpec(inputs[0].shape[1:], inputs[0].dtype),) * inputs[0].shape[0]


def _signatures_unstack(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    arity, dims = len(outputs), range(len(outputs[0].shape))
    return [
        *(AxisSignature((Split(d + 1),), (Split(d),) * arity) for d in dims),
        AxisSignature((Split(0),), (P,) * arity),  # the owner gives it, the others zeros
        linear_in([0], 1, arity),
    ]


def _run_unstack(call: Call) -> None:
    stack, (begin, end) = call.inputs[0], call.input_boxes[0][0]
    for index, member in enumerate(call.outputs):
        member[...] = stack[index - begin] if begin <= index < end else 0


def _infer_direction(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    grad, factor = without_step(inputs, 2)
    alike = len(updates) == 1 and updates[0] == grad and factor == TensorSpec((), grad.dtype)
    expect(
        alike and len(grad.shape) == 3,
        "muon_direction operands differ",
        got=shapes((*inputs, *updates)),
        expected="grad[n, a, b], a scalar factor, velocity[n, a, b]",
    )
    return (grad,)


def _signatures_direction(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(0), *(B for _ in inputs[1:])), (Split(0),), (Split(0),))]


@unless_skipped(2)
def _run_direction(call: Call) -> None:
    """velocity = momentum velocity + g; the direction is g + momentum velocity, made orthogonal.

    In a skipped step it is zero, and so is the learning rate.
    """
    velocity, momentum = call.updates[0], float_attr(call.attrs, "momentum")
    g = scaled_gradient(call)
    velocity *= momentum
    velocity += g
    if call.attrs["nesterov"]:
        g += momentum * velocity
    else:
        g[...] = velocity
    orthogonalize(call.xp, g, call.outputs[0])


def orthogonalize(xp: ArrayModule, matrices: Array, out: Array) -> None:
    """Singular values of every matrix to about one by Newton-Schulz: U V^T of the singular value decomposition.

    Args:
        xp: array module.
        matrices: [n, a, b].
        out: [n, a, b], not the same memory.
    """
    a, b, c = COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(0, 2, 1)
    norm = xp.sqrt((x * x).sum(axis=(1, 2), keepdims=True))
    x = x / (norm + 1e-7)
    for _ in range(ITERATIONS):
        gram = xp.matmul(x, x.transpose(0, 2, 1))
        x = a * x + xp.matmul(b * gram + c * xp.matmul(gram, gram), x)
    out[...] = x if wide else x.transpose(0, 2, 1)


def _signatures_descend(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return update_signatures(inputs, 1)


def _run_descend(call: Call) -> None:
    """param = (1 - lr decay) param - lr scale direction."""
    direction, lr = call.inputs
    step = call.workspace.get("step", direction.shape, direction.dtype)
    call.xp.multiply(direction, lr * float_attr(call.attrs, "scale"), out=step)
    param, decay = call.updates[0], float_attr(call.attrs, "weight_decay")
    if decay:
        param *= 1 - lr * decay
    param -= step


def _no_flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _flop_direction(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Per iteration two products [s, l] by [l, s] or [s, s] by [s, l], and one [s, s] by [s, s]."""
    n, *sides = inputs[0].shape
    short, long = min(sides), max(sides)
    return n * ITERATIONS * (4 * short * short * long + 2 * math.prod((short,) * 3))


def _flop_descend(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 3 * inputs[0].size


_SCALAR = TensorSpec(())
_POSITIVE = (0.1, 2.0)


def _direction_example(shape: tuple[int, ...], nesterov: int, *step: TensorSpec) -> Example:
    spec, attrs = TensorSpec(shape), {"momentum": 0.95, "nesterov": nesterov}
    return Example(
        (spec, _SCALAR, *step), (spec,), attrs, {1: _POSITIVE, **dict.fromkeys(range(2, 2 + len(step)), (0, 3))}
    )


OPS = (
    OpDef(
        "stack",
        _infer_stack,
        _no_flop,
        _signatures_stack,
        _run_stack,
        _gradient_stack,
        examples=(Example((TensorSpec((4, 7)),) * 5), Example((TensorSpec(()),) * 4)),
    ),
    OpDef(
        "unstack",
        _infer_unstack,
        _no_flop,
        _signatures_unstack,
        _run_unstack,
        examples=(Example((TensorSpec((5, 4, 7)),)), Example((TensorSpec((4,)),))),
    ),
    OpDef(
        "muon_direction",
        _infer_direction,
        _flop_direction,
        _signatures_direction,
        _run_direction,
        cost=FlopBound(),
        scratch=scratch_like(0),
        examples=(_direction_example((5, 4, 7), 1), _direction_example((4, 7, 5), 0, STEP)),
    ),
    OpDef(
        "descend",
        infer_update("descend", 1, (1,)),
        _flop_descend,
        _signatures_descend,
        _run_descend,
        trains=True,
        scratch=scratch_like(0),
        examples=tuple(
            Example(
                (TensorSpec(shape), _SCALAR),
                (TensorSpec(shape),),
                {"scale": 1.5, "weight_decay": decay},
                {1: _POSITIVE},
            )
            for shape, decay in (((5, 7), 0.1), ((4,), 0.0))
        ),
    ),
)
