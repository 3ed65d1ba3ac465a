"""`clip_scale` (global-norm clipping as one factor), `adamw` (the update), `report` (what the host reads)."""

from __future__ import annotations

import math

from strategy.graph import Attrs
from strategy.ops.base import AxisSignature, Call, OpDef, Specs, expect, float_attr, shapes
from strategy.sbp import B, Split
from strategy.tensor import TensorSpec


def _infer_clip(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0], inputs[0])


def _no_signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
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


def _infer_adamw(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    grad, factor = inputs
    alike = all(spec == grad for spec in updates) and len(updates) == 3 and factor.shape == ()
    expect(alike, "adamw operands differ", got=shapes((*inputs, *updates)), expected="one shape for all but the factor")
    return ()


def _signatures_adamw(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d), B), (), (Split(d),) * 3) for d in range(len(inputs[0].shape))]


def _run_adamw(call: Call) -> None:
    """Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2; weight decay on matrices alone."""
    xp, (grad, factor), (param, m, v) = call.xp, call.inputs, call.updates
    step = call.number + 1
    lr, beta1, beta2 = (float_attr(call.attrs, key) for key in ("lr", "beta1", "beta2"))
    g = call.workspace.get("g", grad.shape, grad.dtype)
    xp.multiply(grad, factor, out=g)
    m *= beta1
    v *= beta2
    scaled = call.workspace.get("scaled", grad.shape, grad.dtype)
    xp.multiply(g, 1 - beta1, out=scaled)
    m += scaled
    xp.multiply(g, g, out=g)
    g *= 1 - beta2
    v += g
    xp.sqrt(v, out=g)
    g *= 1 / math.sqrt(1 - beta2**step)
    g += float_attr(call.attrs, "epsilon")
    xp.divide(m, g, out=g)
    g *= lr / (1 - beta1**step)
    decay = float_attr(call.attrs, "weight_decay")
    if decay:
        param *= 1 - lr * decay
    param -= g


def _infer_report(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (TensorSpec((len(inputs),), inputs[0].dtype),)


def _run_report(call: Call) -> None:
    for position, scalar in enumerate(call.inputs):
        call.outputs[0][position] = scalar


def _flop_clip(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4


def _flop_adamw(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 13 * inputs[0].size


def _flop_report(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


OPS = (
    OpDef("clip_scale", _infer_clip, _flop_clip, _no_signatures, _run_clip),
    OpDef("adamw", _infer_adamw, _flop_adamw, _signatures_adamw, _run_adamw),
    OpDef("report", _infer_report, _flop_report, _no_signatures, _run_report),
)
