"""Causal self-attention over packed heads, and its gradient.

    attention       qkv[b, s, h, 3, d] -> out[b, s, h, d], lse[b, h, s]
    attention_grad  qkv, out, lse, dout -> dqkv

Query, key and value of one head lie together, so that splitting the heads splits the projection's columns. The
forward pass keeps only the log-sum-exp of every row; the backward pass recomputes the probabilities from it
(Dao et al. 2022, arXiv:2205.14135, section 3.1).
"""

from __future__ import annotations

import math

from strategy.gradient import GradientBuilder
from strategy.graph import Attrs
from strategy.ops.base import (
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    OpDef,
    Specs,
    expect,
    shapes,
)
from strategy.sbp import Split
from strategy.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (qkv,) = inputs
    packed = len(qkv.shape) == 5 and qkv.shape[3] == 3
    expect(packed, "attention needs packed heads", got=shapes(inputs), expected="qkv[b, s, h, 3, d]")
    b, s, h, _, d = qkv.shape
    return (TensorSpec((b, s, h, d), qkv.dtype), TensorSpec((b, h, s), qkv.dtype))


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    batch, head, head_of_lse = Split(0), Split(2), Split(1)
    return [AxisSignature((batch,), (batch, batch)), AxisSignature((head,), (head, head_of_lse))]


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    batch, head, head_of_lse = Split(0), Split(2), Split(1)
    return [AxisSignature((batch,) * 4, (batch,)), AxisSignature((head, head, head_of_lse, head), (head,))]


def _heads_first(call: Call, name: str, x_bshd: Array) -> Array:
    """[b, s, h, d] view -> contiguous [b, h, s, d], which matrix products want."""
    b, s, h, d = x_bshd.shape
    out = call.workspace.get(name, (b, h, s, d), x_bshd.dtype)
    out[...] = x_bshd.transpose(0, 2, 1, 3)
    return out


def _masked_scores(call: Call, q: Array, k: Array) -> Array:
    """q k^T / sqrt(d) with the future at minus infinity: [b, h, s, s]."""
    b, h, s, d = q.shape
    xp = call.xp
    scores = call.workspace.get("scores", (b, h, s, s), q.dtype)
    q *= 1.0 / math.sqrt(d)
    xp.matmul(q, k.transpose(0, 1, 3, 2), out=scores)
    scores += _future(call, xp, s, q.dtype)
    return scores


def _future(call: Call, xp: ArrayModule, s: int, dtype: object) -> Array:
    """[s, s]: minus infinity above the diagonal, zero elsewhere."""
    return call.workspace.constant("future", (s, s), dtype, lambda: xp.triu(xp.full((s, s), -xp.inf, dtype), 1))


def _run(call: Call) -> None:
    xp, qkv, (out, lse) = call.xp, call.inputs[0], call.outputs
    q, k, v = (_heads_first(call, name, qkv[:, :, :, i]) for i, name in enumerate("qkv"))
    probs = _masked_scores(call, q, k)
    top = probs.max(axis=-1, keepdims=True)
    probs -= top
    xp.exp(probs, out=probs)
    total = probs.sum(axis=-1, keepdims=True)
    lse[...] = (xp.log(total) + top)[..., 0]
    mixed = call.workspace.get("mixed", q.shape, q.dtype)
    xp.matmul(probs, v, out=mixed)
    mixed /= total
    out[...] = mixed.transpose(0, 2, 1, 3)


def _gradient(builder: GradientBuilder) -> None:
    (qkv,), (out, lse) = builder.op.inputs, builder.op.outputs
    builder.give(0, builder.emit("dqkv", "attention_grad", (qkv, out, lse, builder.output_gradient())))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _run_grad(call: Call) -> None:
    """dv = p^T do; dp = do v^T; ds = p (dp - rowsum(do o)); dq = ds k / sqrt(d); dk = ds^T q / sqrt(d)."""
    xp, (qkv, out, lse, dout), dqkv = call.xp, call.inputs, call.outputs[0]
    q, k, v = (_heads_first(call, name, qkv[:, :, :, i]) for i, name in enumerate("qkv"))
    do = _heads_first(call, "do", dout)
    probs = _masked_scores(call, q, k)
    probs -= lse[..., None]
    xp.exp(probs, out=probs)
    grad = call.workspace.get("grad", q.shape, q.dtype)
    xp.matmul(probs.transpose(0, 1, 3, 2), do, out=grad)
    dqkv[:, :, :, 2] = grad.transpose(0, 2, 1, 3)
    dp = call.workspace.get("dp", probs.shape, probs.dtype)
    xp.matmul(do, v.transpose(0, 1, 3, 2), out=dp)
    delta = xp.einsum("bshd,bshd->bhs", dout, out)
    dp -= delta[..., None]
    dp *= probs
    xp.matmul(dp.transpose(0, 1, 3, 2), q, out=grad)  # q already carries 1 / sqrt(d)
    dqkv[:, :, :, 1] = grad.transpose(0, 2, 1, 3)
    xp.matmul(dp, k, out=grad)
    grad *= 1.0 / math.sqrt(q.shape[-1])
    dqkv[:, :, :, 0] = grad.transpose(0, 2, 1, 3)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    b, s, h, _, d = inputs[0].shape
    return 4 * b * h * s * s * d


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    b, s, h, _, d = inputs[0].shape
    return 10 * b * h * s * s * d


OPS = (
    OpDef("attention", _infer, _flop, _signatures, _run, _gradient),
    OpDef("attention_grad", _infer_grad, _flop_grad, _signatures_grad, _run_grad),
)
