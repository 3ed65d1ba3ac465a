"""Layer norm over the last dim (Ba et al. 2016, arXiv:1607.06450) and its gradient."""

from __future__ import annotations

from strategy.gradient import GradientBuilder
from strategy.graph import Attrs
from strategy.ops.base import AxisSignature, Call, OpDef, Specs, expect, shapes
from strategy.sbp import B, P, Split
from strategy.tensor import TensorSpec

EPSILON = 1e-5


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, gamma, beta = inputs
    composes = gamma.shape == beta.shape == x.shape[-1:]
    expect(composes, "layer_norm shapes do not compose", got=shapes(inputs), expected="x[..., d], gamma[d], beta[d]")
    stat = TensorSpec(x.shape[:-1], x.dtype)
    return (x, stat, stat)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    leading = range(len(inputs[0].shape) - 1)
    return [AxisSignature((Split(d), B, B), (Split(d), Split(d), Split(d))) for d in leading]


def _run(call: Call) -> None:
    """y = (x - mean) * rstd * gamma + beta; keeps mean and rstd for the gradient."""
    xp, (x, gamma, beta), (y, mean, rstd) = call.xp, call.inputs, call.outputs
    xp.mean(x, axis=-1, out=mean)
    xp.subtract(x, mean[..., None], out=y)
    rstd[...] = xp.einsum("...d,...d->...", y, y)
    rstd *= 1.0 / x.shape[-1]
    rstd += EPSILON
    xp.sqrt(rstd, out=rstd)
    xp.divide(1.0, rstd, out=rstd)
    y *= rstd[..., None]
    y *= gamma
    y += beta


def _gradient(builder: GradientBuilder) -> None:
    x, gamma, _ = builder.op.inputs
    _, mean, rstd = builder.op.outputs
    grads = builder.emit_many(
        "grad", "layer_norm_grad", (x, gamma, mean, rstd, builder.output_gradient()), labels=("dx", "dgamma", "dbeta")
    )
    for position, grad in enumerate(grads):
        builder.give(position, grad)


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, gamma = inputs[0], inputs[1]
    return (x, gamma, gamma)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    leading = range(len(inputs[0].shape) - 1)
    return [
        *(AxisSignature((Split(d), B, Split(d), Split(d), Split(d)), (Split(d), P, P)) for d in leading),
        AxisSignature((B, B, B, B, P), (P, P, P)),
    ]


def _run_grad(call: Call) -> None:
    """With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h))."""
    xp, (x, gamma, mean, rstd, dy), (dx, dgamma, dbeta) = call.xp, call.inputs, call.outputs
    width = x.shape[-1]
    h = call.workspace.get("h", x.shape, x.dtype)
    xp.subtract(x, mean[..., None], out=h)
    h *= rstd[..., None]
    xp.multiply(dy, h, out=dx)
    count = x.size // width
    ones = call.workspace.constant("ones", (1, count), x.dtype, lambda: xp.ones((1, count), x.dtype))
    xp.matmul(ones, dx.reshape(-1, width), out=dgamma.reshape(1, -1))
    xp.matmul(ones, dy.reshape(-1, width), out=dbeta.reshape(1, -1))
    gh = xp.matmul(dx, gamma)
    xp.multiply(dy, gamma, out=dx)
    g = xp.mean(dx, axis=-1)
    h *= (gh / width)[..., None]
    dx -= h
    dx -= g[..., None]
    dx *= rstd[..., None]


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 8 * inputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 14 * inputs[0].size


OPS = (
    OpDef("layer_norm", _infer, _flop, _signatures, _run, _gradient),
    OpDef("layer_norm_grad", _infer_grad, _flop_grad, _signatures_grad, _run_grad),
)
