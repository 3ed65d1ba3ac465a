"""Norms over the last dim: layer norm (Ba et al. 2016, arXiv:1607.06450) and RMS norm; and their gradients.

    layer_norm       x[..., d], gain[d], bias[d]     -> y, mean[...], rstd[...]    (x - mean) rstd gain + bias
    layer_norm_grad  x, gain, mean, rstd, dy         -> dx, dgain, dbias
    rms_norm         x[..., d], gain[d]              -> y, rstd[...]               x rstd gain
    rms_norm_grad    x, gain, rstd, dy               -> dx, dgain

RMS norm: Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4. The last dim stays whole; the gradients of gain and
bias are partial over whatever other dim is split. Statistics of half precision are in float32.
"""

from __future__ import annotations

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, expect, float_attr, shapes
from strategy.graph.ops.cache_blocks import by_rows
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import ScratchSizes, sized
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import TensorSpec

EPSILON = 1e-5
"""Added to the variance where the attribute `epsilon` is not given."""


def epsilon_of(attrs: Attrs) -> float:
    """What keeps the root of the variance from zero."""
    return float_attr(attrs, "epsilon") if "epsilon" in attrs else EPSILON


def sum_rows(call: Call, rows: Array, total: Array) -> None:
    """The sum of x[..., d] over all leading dims; a product with ones sums faster than a strided reduction."""
    count = rows.size // rows.shape[-1]
    ones = call.workspace.constant("ones", (1, count), rows.dtype, lambda: call.xp.ones((1, count), rows.dtype))
    call.xp.matmul(ones, rows.reshape(count, -1), out=total.reshape(1, -1))


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, gamma, beta = inputs
    composes = gamma.shape == beta.shape == x.shape[-1:]
    expect(composes, "layer_norm shapes do not compose", got=shapes(inputs), expected="x[..., d], gamma[d], beta[d]")
    dtypes = tuple(spec.dtype for spec in inputs)
    expect(len(set(dtypes)) == 1, "layer_norm mixes dtypes", got=dtypes, expected="one dtype")
    stat = TensorSpec(x.shape[:-1], x.dtype.wide)
    return (x, stat, stat)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    leading = range(len(inputs[0].shape) - 1)
    found = [AxisSignature((Split(d), B, B), (Split(d), Split(d), Split(d))) for d in leading]
    return [*found, AxisSignature((B, P, P), (P, B, B))]


def _by_kernel(call: Call) -> None:
    row_kernels.layer_norm(*call.inputs, np.float32(epsilon_of(call.attrs)), *call.outputs)


def _grad_by_kernel(call: Call) -> None:
    part = call.workspace.get("part", (2, call.inputs[0].shape[-1]), np.float32)
    row_kernels.layer_norm_grad(*call.inputs, *call.outputs, part)


def _rms_by_kernel(call: Call) -> None:
    row_kernels.rms_norm(*call.inputs, np.float32(epsilon_of(call.attrs)), *call.outputs)


def _rms_grad_by_kernel(call: Call) -> None:
    part = call.workspace.get("part", (call.inputs[0].shape[-1],), np.float32)
    row_kernels.rms_norm_grad(*call.inputs, *call.outputs, part)


@by_rows("xdd", "xss", _by_kernel)
def _run(call: Call) -> None:
    """y = (x - mean) * rstd * gamma + beta; keeps mean and rstd for the gradient."""
    xp, (x, gamma, beta), (y, mean, rstd) = call.xp, call.inputs, call.outputs
    xp.mean(x, axis=-1, out=mean)
    xp.subtract(x, mean[..., None], out=y)
    rstd[...] = xp.einsum("...d,...d->...", y, y)
    rstd *= 1.0 / x.shape[-1]
    rstd += epsilon_of(call.attrs)
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
        AxisSignature((B, P, B, B, B), (P, B, B)),
    ]


@by_rows("xdssx", "xtt", _grad_by_kernel)
def _run_grad(call: Call) -> None:
    """With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h))."""
    xp, (x, gamma, mean, rstd, dy), (dx, dgamma, dbeta) = call.xp, call.inputs, call.outputs
    width = x.shape[-1]
    h = call.workspace.get("h", x.shape, x.dtype)
    xp.subtract(x, mean[..., None], out=h)
    h *= rstd[..., None]
    xp.multiply(dy, h, out=dx)
    sum_rows(call, dx, dgamma)
    sum_rows(call, dy, dbeta)
    gh = xp.matmul(dx, gamma)
    xp.multiply(dy, gamma, out=dx)
    g = xp.mean(dx, axis=-1)
    h *= (gh / width)[..., None]
    dx -= h
    dx -= g[..., None]
    dx *= rstd[..., None]


def _scratch_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """x normed; ones for sums over rows."""
    x = inputs[0]
    return ScratchSizes((x.nbytes,), sized(x.dtype.nbytes, x.shape[:-1]))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 8 * inputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 14 * inputs[0].size


def _infer_rms(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, gain = inputs
    composes = gain.shape == x.shape[-1:] and gain.dtype == x.dtype
    expect(composes, "rms_norm shapes do not compose", got=shapes(inputs), expected="x[..., d], gain[d] of one dtype")
    return (x, TensorSpec(x.shape[:-1], x.dtype.wide))


def _signatures_rms(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    leading = range(len(inputs[0].shape) - 1)
    return [*(AxisSignature((Split(d), B), (Split(d), Split(d))) for d in leading), AxisSignature((B, P), (P, B))]


@by_rows("xd", "xs", _rms_by_kernel)
def _run_rms(call: Call) -> None:
    xp, (x, gain), (y, rstd) = call.xp, call.inputs, call.outputs
    rstd[...] = xp.einsum("...d,...d->...", x, x)
    rstd *= 1.0 / x.shape[-1]
    rstd += epsilon_of(call.attrs)
    xp.sqrt(rstd, out=rstd)
    xp.divide(1.0, rstd, out=rstd)
    xp.multiply(x, rstd[..., None], out=y)
    y *= gain


def _gradient_rms(builder: GradientBuilder) -> None:
    (x, gain), (_, rstd) = builder.op.inputs, builder.op.outputs
    inputs = (x, gain, rstd, builder.output_gradient())
    for position, grad in enumerate(builder.emit_many("grad", "rms_norm_grad", inputs, labels=("dx", "dgain"))):
        builder.give(position, grad)


def _infer_rms_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0], inputs[1])


def _signatures_rms_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    leading = range(len(inputs[0].shape) - 1)
    return [
        *(AxisSignature((Split(d), B, Split(d), Split(d)), (Split(d), P)) for d in leading),
        AxisSignature((B, B, B, P), (P, P)),
        AxisSignature((B, P, B, B), (P, B)),
    ]


@by_rows("xdsx", "xt", _rms_grad_by_kernel)
def _run_rms_grad(call: Call) -> None:
    """With h = x rstd and g = dy gain: dx = rstd (g - h mean(g h)), dgain = sum of dy h."""
    xp, (x, gain, rstd, dy), (dx, dgain) = call.xp, call.inputs, call.outputs
    h = call.workspace.get("h", x.shape, x.dtype)
    xp.multiply(x, rstd[..., None], out=h)
    xp.multiply(dy, h, out=dx)
    sum_rows(call, dx, dgain)
    gh = xp.matmul(dx, gain)
    xp.multiply(dy, gain, out=dx)
    h *= (gh / x.shape[-1])[..., None]
    dx -= h
    dx *= rstd[..., None]


def _flop_rms(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4 * inputs[0].size


def _flop_rms_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 10 * inputs[0].size


_SHAPES = ((5, 8), (4, 7, 5))


def _examples(forms: str) -> tuple[Example, ...]:
    """Operands by form: "x" like the input, "d" like the gain, "s" like a statistic."""
    return tuple(
        Example(tuple(TensorSpec({"x": shape, "d": shape[-1:], "s": shape[:-1]}[form]) for form in forms))
        for shape in _SHAPES
    )


OPS = (
    OpDef("layer_norm", _infer, _flop, _signatures, _run, _gradient, examples=_examples("xdd")),
    OpDef(
        "layer_norm_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad,
        scratch=_scratch_grad,
        examples=_examples("xdssx"),
    ),
    OpDef("rms_norm", _infer_rms, _flop_rms, _signatures_rms, _run_rms, _gradient_rms, examples=_examples("xd")),
    OpDef(
        "rms_norm_grad",
        _infer_rms_grad,
        _flop_rms_grad,
        _signatures_rms_grad,
        _run_rms_grad,
        scratch=_scratch_grad,
        examples=_examples("xdsx"),
    ),
)
