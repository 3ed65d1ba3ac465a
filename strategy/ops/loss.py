"""Softmax cross-entropy with the sum as its reduction, and the count of the tokens that it sums over.

Sums, not means: the mean over all micro-batches and ranks is the reduced sum over the reduced count, whatever the
layout; a mean of means is not. Gradients are divided by the count once, before clipping.
"""

from __future__ import annotations

from strategy.gradient import GradientBuilder
from strategy.graph import Attrs
from strategy.ops.base import Array, AxisSignature, Call, OpDef, Specs, expect, shapes
from strategy.sbp import P, Split
from strategy.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    logits, labels = inputs
    composes = logits.shape[:-1] == labels.shape and not labels.dtype.is_float
    expect(composes, "cross_entropy shapes do not compose", got=shapes(inputs), expected="logits[..., v], labels[...]")
    return (TensorSpec((), logits.dtype), TensorSpec((), logits.dtype), TensorSpec(labels.shape, logits.dtype))


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d), Split(d)), (P, P, Split(d))) for d in range(len(inputs[1].shape))]


def _label_cells(call: Call, labels: Array) -> tuple[Array, Array]:
    """Index of the label's logit in every row of flattened logits."""
    return call.xp.arange(labels.size), labels.reshape(-1)


def _run(call: Call) -> None:
    """loss = sum(logsumexp(logits) - logits[label]); keeps the log-sum-exp."""
    xp, (logits, labels), (loss, count, lse) = call.xp, call.inputs, call.outputs
    shifted = call.workspace.get("shifted", logits.shape, logits.dtype)
    top = logits.max(axis=-1)
    xp.subtract(logits, top[..., None], out=shifted)
    xp.exp(shifted, out=shifted)
    lse[...] = xp.log(shifted.sum(axis=-1))
    lse += top
    cells = _label_cells(call, labels)
    picked = logits.reshape(-1, logits.shape[-1])[cells]
    loss[...] = (lse.reshape(-1) - picked).sum()
    count[...] = labels.size


def _gradient(builder: GradientBuilder) -> None:
    logits, labels = builder.op.inputs
    builder.give(0, builder.emit("dlogits", "cross_entropy_grad", (logits, labels, builder.op.outputs[2])))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d),) * 3, (Split(d),)) for d in range(len(inputs[1].shape))]


def _run_grad(call: Call) -> None:
    """dlogits = softmax(logits) - onehot(label)."""
    xp, (logits, labels, lse), dlogits = call.xp, call.inputs, call.outputs[0]
    xp.subtract(logits, lse[..., None], out=dlogits)
    xp.exp(dlogits, out=dlogits)
    cells = _label_cells(call, labels)
    dlogits.reshape(-1, logits.shape[-1])[cells] -= 1


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 5 * inputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 3 * inputs[0].size


OPS = (
    OpDef("cross_entropy", _infer, _flop, _signatures, _run, _gradient),
    OpDef("cross_entropy_grad", _infer_grad, _flop_grad, _signatures_grad, _run_grad),
)
