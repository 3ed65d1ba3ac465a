"""LAMB (You et al. 2020, arXiv:1904.00962, algorithm 2): `lamb_direction`, then `lamb_apply` with the trust ratio.

The ratio |param| / |direction| takes the norms of the logical tensors. So the rule is two ops, with the squared norms
of parameter and direction in between: where the tensors are split, each rank's sum of squares is a term, and boxing
adds them up before the ratio is formed.

    lamb_direction   grad, factor, param, (step); m, v -> direction
    lamb_apply       direction, |param|^2, |direction|^2, learning rate; param
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, expect, float_attr, shapes
from strategy.graph.ops.optimizer import (
    ADAM_ATTRS,
    adam_direction,
    infer_update,
    scaled_gradient,
    update_signatures,
)
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.skipped_steps import STEP, step_of, unless_skipped, without_step
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import TensorSpec


def _infer_direction(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    grad, factor, param = without_step(inputs, 3)
    alike = all(spec == grad for spec in (param, *updates)) and len(updates) == 2
    expect(
        alike and factor == TensorSpec((), grad.dtype),
        "lamb_direction operands differ",
        got=shapes((*inputs, *updates)),
        expected="a scalar factor, and one shape for gradient, parameter and both moments",
    )
    return (grad,)


def _signatures_direction(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    dims = range(len(inputs[0].shape))
    step = (B,) * (len(inputs) - 3)
    return [AxisSignature((Split(d), B, Split(d), *step), (Split(d),), (Split(d),) * 2) for d in dims]


@unless_skipped(3)
def _run_direction(call: Call) -> None:
    """Adam's direction plus weight decay; zero in a skipped step, whose learning rate is zero too."""
    param, direction, (m, v) = call.inputs[2], call.outputs[0], call.updates
    g = adam_direction(call, step_of(call, 3), scaled_gradient(call), m, v)
    call.xp.multiply(param, float_attr(call.attrs, "weight_decay"), out=direction)
    direction += g


def _signatures_apply(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return update_signatures(inputs, 1)


def _run_apply(call: Call) -> None:
    """param -= lr |param| / |direction| direction; the ratio is one where either norm is zero."""
    xp, (direction, param_square, direction_square, lr) = call.xp, call.inputs
    known = (param_square > 0) & (direction_square > 0)
    ratio = xp.sqrt(xp.where(known, param_square, 1) / xp.where(known, direction_square, 1))
    step = call.workspace.get("step", direction.shape, direction.dtype)
    xp.multiply(direction, lr * ratio, out=step)
    param = call.updates[0]
    param -= step


def _flop_direction(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 14 * inputs[0].size


def _flop_apply(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size


_SCALAR = TensorSpec(())
_POSITIVE = (0.1, 2.0)


def _direction_example(spec: TensorSpec, *step: TensorSpec) -> Example:
    ranges = {1: _POSITIVE, 3: (0.0, 3.0), 4 + len(step): _POSITIVE}
    return Example((spec, _SCALAR, spec, *step), (spec, spec), ADAM_ATTRS, ranges)


def _apply_example(spec: TensorSpec) -> Example:
    return Example((spec, _SCALAR, _SCALAR, _SCALAR), (spec,), ranges=dict.fromkeys((1, 2, 3), _POSITIVE))


OPS = (
    OpDef(
        "lamb_direction",
        _infer_direction,
        _flop_direction,
        _signatures_direction,
        _run_direction,
        scratch=scratch_like(0, 0),
        examples=(_direction_example(TensorSpec((5, 7))), _direction_example(TensorSpec((4,)), STEP)),
    ),
    OpDef(
        "lamb_apply",
        infer_update("lamb_apply", 3, (1,)),
        _flop_apply,
        _signatures_apply,
        _run_apply,
        trains=True,
        scratch=scratch_like(0),
        examples=(_apply_example(TensorSpec((5, 7))), _apply_example(TensorSpec((4,)))),
    ),
)
