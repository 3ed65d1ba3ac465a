"""Update rules that work element by element: `sgd`, `adam`, `adamw`, `adagrad`; and `clip_scale`, `report`.

Every rule reads a gradient of sums, a factor that all gradients share (the mean over the tokens, and the clip), and the
learning rate; it rewrites a parameter and its state in place. Any split that all of them share is legal. Where steps
may be skipped, a rule reads the number of the step as well (see `skip`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, expect, float_attr, shapes
from strategy.graph.ops.cache_blocks import by_elements
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.skipped_steps import STEP, step_of, unless_skipped, without_step
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import Shape, TensorSpec


def infer_update(kind: str, scalars: int, variables: tuple[int, ...]) -> Callable[..., tuple[TensorSpec, ...]]:
    """Shape rule of an update: a tensor, then scalars; `variables` are the possible numbers of variables like it.

    The number of the step may follow.
    """

    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        tensor, rest = inputs[0], without_step(inputs, 1 + scalars)[1:]
        alike = all(spec == tensor for spec in updates) and len(updates) in variables
        single = len(rest) == scalars and all(spec == TensorSpec((), tensor.dtype) for spec in rest)
        expected = f"one tensor, {scalars} scalars, and variables like the tensor: {' or '.join(map(str, variables))}"
        expect(alike and single, f"{kind} operands differ", got=shapes((*inputs, *updates)), expected=expected)
        return ()

    return infer


def update_signatures(inputs: Specs, updates: int, results: int = 0) -> list[AxisSignature]:
    """Every tensor split alike, the scalars whole."""
    return [
        AxisSignature(
            tuple(Split(d) if spec.shape else B for spec in inputs), (Split(d),) * results, (Split(d),) * updates
        )
        for d in range(len(inputs[0].shape))
    ]


def scaled_gradient(call: Call) -> Array:
    """The mean gradient, clipped: first input times second, in scratch that the rule may overwrite."""
    grad, factor = call.inputs[0], call.inputs[1]
    g = call.workspace.get("g", grad.shape, grad.dtype)
    call.xp.multiply(grad, factor, out=g)
    return g


def _signatures(states: int) -> Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]:
    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        return update_signatures(inputs, 1 + states)

    return signatures


def _signatures_sgd(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return update_signatures(inputs, 2 if float_attr(attrs, "momentum") else 1)


def _decay_gradient(call: Call, g: Array) -> None:
    """Weight decay as a term of the gradient: g += decay * param."""
    decay = float_attr(call.attrs, "weight_decay")
    if decay:
        scaled = call.workspace.get("scaled", g.shape, g.dtype)
        call.xp.multiply(call.updates[0], decay, out=scaled)
        g += scaled


def _infer_sgd(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return infer_update("sgd", 2, (2,) if float_attr(attrs, "momentum") else (1,))(inputs, updates, attrs)


@unless_skipped(3)
@by_elements
def _run_sgd(call: Call) -> None:
    """velocity = momentum velocity + g; param -= lr (velocity, or with Nesterov g + momentum velocity).

    Sutskever et al. 2013 in the form of PyTorch, whose learning rate multiplies the velocity.
    """
    xp, lr, param = call.xp, call.inputs[2], call.updates[0]
    momentum = float_attr(call.attrs, "momentum")
    g = scaled_gradient(call)
    _decay_gradient(call, g)
    if momentum:
        velocity = call.updates[1]
        velocity *= momentum
        velocity += g
        if call.attrs["nesterov"]:
            scaled = call.workspace.get("scaled", g.shape, g.dtype)
            xp.multiply(velocity, momentum, out=scaled)
            g += scaled
        else:
            g[...] = velocity
    g *= lr
    param -= g


def adam_direction(call: Call, step: int, g: Array, m: Array, v: Array) -> Array:
    """Rewrites m and v by gradient g, and g by m' / (sqrt(v') + epsilon), both corrected for their start at zero.

    Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1, whose t is `step`.
    """
    xp = call.xp
    beta1, beta2 = float_attr(call.attrs, "beta1"), float_attr(call.attrs, "beta2")
    m *= beta1
    v *= beta2
    scaled = call.workspace.get("scaled", g.shape, g.dtype)
    xp.multiply(g, 1 - beta1, out=scaled)
    m += scaled
    xp.multiply(g, g, out=g)
    g *= 1 - beta2
    v += g
    xp.sqrt(v, out=g)
    g *= 1 / math.sqrt(1 - beta2**step)
    g += float_attr(call.attrs, "epsilon")
    xp.divide(m, g, out=g)
    g *= 1 / (1 - beta1**step)
    return g


def _adam_by_kernel(call: Call, *, decay: float, kept: float) -> None:
    """Adam's rule: `decay` times the parameter is a term of the gradient, and `kept` is what is left of it."""
    beta1, beta2 = float_attr(call.attrs, "beta1"), float_attr(call.attrs, "beta2")
    step, lr = step_of(call, 3), call.inputs[2].item()
    figures = (
        call.inputs[1].item(),
        decay,
        kept,
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        1 / math.sqrt(1 - beta2**step),
        float_attr(call.attrs, "epsilon"),
        lr / (1 - beta1**step),
    )
    row_kernels.adam(call.inputs[0], *call.updates, *map(np.float32, figures))


def _adam_kernel(call: Call) -> None:
    _adam_by_kernel(call, decay=float_attr(call.attrs, "weight_decay"), kept=1.0)


def _adamw_kernel(call: Call) -> None:
    decay = float_attr(call.attrs, "weight_decay")
    _adam_by_kernel(call, decay=0.0, kept=1 - call.inputs[2].item() * decay)


def _run_adam(call: Call) -> None:
    """Weight decay is a term of the gradient, as in PyTorch's Adam."""
    param, m, v = call.updates
    g = scaled_gradient(call)
    _decay_gradient(call, g)
    adam_direction(call, step_of(call, 3), g, m, v)
    g *= call.inputs[2]
    param -= g


def _run_adamw(call: Call) -> None:
    """Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2: weight decay apart from the gradient."""
    param, m, v = call.updates
    lr = call.inputs[2]
    g = adam_direction(call, step_of(call, 3), scaled_gradient(call), m, v)
    g *= lr
    decay = float_attr(call.attrs, "weight_decay")
    if decay:
        param *= 1 - lr * decay
    param -= g


@unless_skipped(3)
@by_elements
def _run_adagrad(call: Call) -> None:
    """sum += g^2; param -= lr g / (sqrt(sum) + epsilon) (Duchi et al. 2011, the diagonal rule)."""
    xp, (param, total) = call.xp, call.updates
    g = scaled_gradient(call)
    _decay_gradient(call, g)
    root = call.workspace.get("scaled", g.shape, g.dtype)
    xp.multiply(g, g, out=root)
    total += root
    xp.sqrt(total, out=root)
    root += float_attr(call.attrs, "epsilon")
    g /= root
    g *= call.inputs[2]
    param -= g


def _infer_clip(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    scalar = len(inputs) == 2 and inputs[0] == inputs[1] and inputs[0].shape == ()
    expect(scalar, "clip_scale needs two scalars", got=shapes(inputs), expected="squared norm, count")
    return (inputs[0], inputs[0])


def no_signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Nothing but whole tensors."""
    return []


def _run_clip(call: Call) -> None:
    """From the squared norm of the summed gradients and the token count: the factor and the norm of the mean gradient.

    factor = min(1, max_norm / norm) / count (Pascanu et al. 2013, arXiv:1211.5063, algorithm 1).
    """
    xp, (square, count), (factor, norm) = call.xp, call.inputs, call.outputs
    xp.sqrt(square, out=norm)
    norm /= count
    limit = float_attr(call.attrs, "max_norm")
    factor[...] = xp.minimum(1.0, limit / xp.maximum(norm, xp.finfo(norm.dtype).tiny)) / count


def _infer_report(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    scalar = bool(inputs) and all(spec == inputs[0] and spec.shape == () for spec in inputs)
    expect(scalar, "report needs scalars of one dtype", got=shapes(inputs), expected="one or more scalars")
    return (TensorSpec((len(inputs),), inputs[0].dtype),)


def _run_report(call: Call) -> None:
    for position, scalar in enumerate(call.inputs):
        call.outputs[0][position] = scalar


def _flop_clip(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4


def _flop_per_element(count: int) -> Callable[[Specs, Specs, Attrs], int]:
    def flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
        return count * inputs[0].size

    return flop


def _flop_report(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


ADAM_ATTRS: Attrs = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
"""Hyper-parameters of the examples."""

_SCALAR = TensorSpec(())
_POSITIVE = (0.1, 2.0)


def _examples(states: int, *attrs: Attrs, positive: tuple[int, ...] = ()) -> tuple[Example, ...]:
    """A matrix, a vector and a scalar under each choice of attributes; `positive` are states that hold squares.

    The vector's steps are numbered, and may be skipped.
    """

    def example(chosen: Attrs, shape: Shape) -> Example:
        numbered = (STEP,) if len(shape) == 1 else ()
        inputs = (TensorSpec(shape), _SCALAR, _SCALAR, *numbered)
        squares = (len(inputs) + 1 + state for state in positive)
        ranges = {**dict.fromkeys((1, 2, *squares), _POSITIVE), **dict.fromkeys(range(3, len(inputs)), (0, 3))}
        return Example(inputs, (TensorSpec(shape),) * (1 + states), chosen, ranges)

    return tuple(example(chosen, shape) for chosen in attrs for shape in ((5, 7), (4,), ()))


_SGD = {"momentum": 0.0, "nesterov": 0, "weight_decay": 0.1}

OPS = (
    OpDef(
        "clip_scale",
        _infer_clip,
        _flop_clip,
        no_signatures,
        _run_clip,
        examples=tuple(
            Example((_SCALAR, _SCALAR), attrs={"max_norm": limit}, ranges={0: _POSITIVE, 1: _POSITIVE})
            for limit in (0.01, 100.0)
        ),
        clips=True,
    ),
    OpDef(
        "sgd",
        _infer_sgd,
        _flop_per_element(6),
        _signatures_sgd,
        _run_sgd,
        trains=True,
        scratch=scratch_like(0, 0),
        examples=(
            *_examples(0, _SGD),
            *_examples(1, _SGD | {"momentum": 0.9}, _SGD | {"momentum": 0.9, "nesterov": 1, "weight_decay": 0.0}),
        ),
    ),
    OpDef(
        "adam",
        infer_update("adam", 2, (3,)),
        _flop_per_element(15),
        _signatures(2),
        unless_skipped(3)(by_elements(_run_adam, _adam_kernel)),
        trains=True,
        scratch=scratch_like(0, 0),
        examples=_examples(2, ADAM_ATTRS, positive=(1,)),
    ),
    OpDef(
        "adamw",
        infer_update("adamw", 2, (3,)),
        _flop_per_element(14),
        _signatures(2),
        unless_skipped(3)(by_elements(_run_adamw, _adamw_kernel)),
        trains=True,
        scratch=scratch_like(0, 0),
        examples=_examples(2, ADAM_ATTRS, {**ADAM_ATTRS, "weight_decay": 0.0}, positive=(1,)),
    ),
    OpDef(
        "adagrad",
        infer_update("adagrad", 2, (2,)),
        _flop_per_element(8),
        _signatures(1),
        _run_adagrad,
        trains=True,
        scratch=scratch_like(0, 0),
        examples=_examples(1, {"epsilon": 1e-8, "weight_decay": 0.1}, positive=(0,)),
    ),
    OpDef(
        "report",
        _infer_report,
        _flop_report,
        no_signatures,
        _run_report,
        precision=PrecisionClass.SINGLE,
        examples=(Example((_SCALAR,)), Example((_SCALAR,) * 3)),
    ),
)
