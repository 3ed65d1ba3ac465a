"""Attention over heads, packed or separate, grouped or not, causal or not; and its gradient.

    attention       q[b, s, h, d], k[b, t, g, d], v[b, t, g, e]  or  qkv[b, s, g, h/g + 2, d]
                    (visible[b, t] or sinks[h]) -> out[b, s, h, e], lse[b, h, s]
    attention_grad  the same, out, lse, dout -> dq, dk, dv, (dsinks)  or  dqkv

`heads` says what the operands are. The forward pass keeps only the log-sum-exp of every row; the backward pass
recomputes the probabilities from it (Dao et al. 2022, arXiv:2205.14135, section 3.1), which lets it run on any piece
of the queries, keys or heads. The keys of the forward pass may not be split; `attention_block` is for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops import row_kernels
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, expect, shapes
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.heads import (
    SOME_HIDDEN,
    Heads,
    expect_heads,
    has_sinks,
    head_splits,
    head_widths,
    heads_of,
    heads_scratch,
    hide,
    is_packed,
    key_rows,
    key_split,
    left_scale,
    lse_of,
    multiply_keys,
    multiply_queries,
    packed_heads,
    pairs_of,
    query_blocks,
    query_rows,
    samples_at_once,
    scores_of,
    seen_by,
    separate_examples,
    separate_heads,
)
from strategy.graph.ops.machine_coded import as_machine_code, as_operand
from strategy.graph.ops.scratch import ScratchSizes
from strategy.graph.ops.traits import Attention, PrecisionClass, RecomputeClass
from strategy.sbp.sbp import B, P, Sbp
from strategy.sbp.tensor import DType, TensorSpec


def by_samples(run: Callable[[Call], None]) -> Callable[[Call], None]:
    """The meaning of an op on samples: few at once with NumPy, so that a cache holds the scores of these."""

    def act(call: Call) -> None:
        samples = call.inputs[0].shape[0]
        if call.xp is not np or samples < 2 or has_sinks(call.attrs):
            run(call)
            return
        at_once = samples_at_once(call.inputs, call.attrs)
        for first in range(0, samples, at_once):
            some = slice(first, first + at_once)
            inputs, outputs = (tuple(array[some] for array in group) for group in (call.inputs, call.outputs))
            run(replace(call, inputs=inputs, outputs=outputs))

    return act


def attend(call: Call, heads: Heads, target: Array) -> Array:
    """Writes the values that every query sees, weighted, to a view [b, s, n, c, e] of a result.

    Gives the log-sum-exp of their scores, [b, n, c s].
    """
    q = query_rows(call, "q", heads.q)
    k, v = key_rows(call, "k", heads, heads.k), key_rows(call, "v", heads, heads.v)
    probs = scores_of(call, heads, q, k)
    sums = _soft_max(call, heads, probs)
    multiply_queries(call, "mixed", probs, v, target)
    return sums


def _soft_max(call: Call, heads: Heads, scores: Array) -> Array:
    """Rewrites scores to their soft-max; gives the log-sum-exp of every row, [.., rows]."""
    xp, scale = call.xp, left_scale(heads)
    if as_machine_code(xp, (scores,)):
        top, total = (call.workspace.get(name, scores.shape[:-1], scores.dtype) for name in ("top", "total"))
        rows = scores.reshape(-1, scores.shape[-1])
        row_kernels.weigh_rows(rows, np.float32(scale), *seen_by(heads), total.reshape(-1), top.reshape(-1))
        return xp.log(total) + top
    if scale != 1.0:
        scores *= scale
    hide(call, heads, scores)
    top = scores.max(axis=-1, keepdims=True)
    scores -= top
    xp.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= total
    return (xp.log(total) + top)[..., 0]


@by_samples
def _run(call: Call) -> None:
    out, lse = call.outputs
    heads = heads_of(call, call.inputs)
    b, s, n, c, _ = heads.q.shape
    by_run, sums_of = out.reshape(b, s, n, c, -1), lse.reshape(b, n, c, s)
    for queries, part in query_blocks(call, heads):
        mixed = by_run[:, queries]
        sums = attend(call, part, mixed).reshape(b, n, c, -1)
        if has_sinks(call.attrs):
            total = call.xp.logaddexp(sums, call.inputs[3].reshape(n, c, 1))
            mixed *= call.xp.exp(sums - total).transpose(0, 3, 1, 2)[..., None]
            sums = total
        sums_of[..., queries] = sums


def sinks_gradient(call: Call, sinks: Array, lse: Array, delta: Array) -> Array:
    """[h]: minus the sum of exp(sink - lse) delta over samples and rows, of lse and delta [b, h, s]."""
    total: Array = -(call.xp.exp(sinks[None, :, None] - lse) * delta).sum(axis=(0, 2))
    return total


def backward(
    call: Call, heads: Heads, normaliser: Array, dout: Array, delta: Array, targets: Heads, *, add: bool = False
) -> None:
    """Gradients of rows p v, where p = exp(scores - normaliser); where they `add`, those of keys and values are sums.

    dv = p^T do; ds = scale p (do v^T - delta), times the slope of the cap; dq = ds k; dk = ds^T q. `normaliser`
    and `delta` are [b, n, c s], `dout` is [b, n, c s, e]; `targets` are views of the gradients.
    """
    xp = call.xp
    q = query_rows(call, "q", heads.q)
    k, v = key_rows(call, "k", heads, heads.k), key_rows(call, "v", heads, heads.v)
    slope = call.workspace.get("slope", (*q.shape[:-1], k.shape[2]), q.dtype) if heads.scoring.softcap else None
    probs = scores_of(call, heads, q, k, slope)
    ds = call.workspace.get("ds", probs.shape, probs.dtype)
    xp.matmul(dout, v.transpose(0, 1, 3, 2), out=ds)
    _soft_max_again(call, heads, probs, ds, normaliser, delta)
    multiply_keys(call, "by_value", probs.transpose(0, 1, 3, 2), dout, targets.v, heads, add=add)
    if slope is not None:
        ds *= slope
    multiply_keys(call, "by_key", ds.transpose(0, 1, 3, 2), q, targets.k, heads, add=add)
    multiply_queries(call, "by_query", ds, k, targets.q)


def _soft_max_again(call: Call, heads: Heads, scores: Array, slopes: Array, normaliser: Array, delta: Array) -> None:
    """Rewrites scores to p = exp(score - normaliser), and slopes to scale (slope - delta) p."""
    scale = left_scale(heads)
    if as_machine_code(call.xp, (scores,)):
        rows, by_row = (-1, scores.shape[-1]), [as_operand(x, (-1,)) for x in (normaliser, delta)]
        scales = np.float32(scale), np.float32(heads.scoring.scale)
        row_kernels.weigh_rows_again(scores.reshape(rows), slopes.reshape(rows), *scales, *seen_by(heads), *by_row)
        return
    if scale != 1.0:
        scores *= scale
    hide(call, heads, scores)
    scores -= normaliser[..., None]
    call.xp.exp(scores, out=scores)
    slopes -= delta[..., None]
    slopes *= heads.scoring.scale
    slopes *= scores


def gradient_heads(call: Call) -> Heads:
    """Views of the gradients that a backward op writes, like those of its operands."""
    if len(call.outputs) == 1:
        return packed_heads(call, call.outputs[0], None)
    dq, dk, dv = call.outputs[:3]
    return separate_heads(call, dq, dk, dv, None)


@by_samples
def _run_grad(call: Call) -> None:
    *operands, out, lse, dout = call.inputs
    heads, targets = heads_of(call, tuple(operands)), gradient_heads(call)
    b, s, n, c, _ = heads.q.shape
    delta = call.xp.einsum("bshd,bshd->bhs", dout, out)
    if has_sinks(call.attrs):
        call.outputs[3][...] = sinks_gradient(call, operands[3], lse, delta)
    by_query, blocks = dout.reshape(b, s, n, c, -1), list(query_blocks(call, heads))[::-1]
    # The last queries see all keys, but for a window's: what they give is written, and the others' is added to it.
    adds = blocks[0][1].k.shape != heads.k.shape
    if adds:
        targets.k[...] = 0
        targets.v[...] = 0
    for queries, part in blocks:
        rows = (b, n, -1)
        do = query_rows(call, "do", by_query[:, queries])
        normaliser, slopes = (x.reshape(b, n, c, s)[..., queries].reshape(rows) for x in (lse, delta))
        keys = slice(part.first_key - heads.first_key, part.first_key - heads.first_key + part.k.shape[1])
        of_part = replace(targets, q=targets.q[:, queries], k=targets.k[:, keys], v=targets.v[:, keys])
        backward(call, part, normaliser, do, slopes, of_part, add=adds)
        adds = True


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    out = expect_heads(inputs, attrs)
    return (out, lse_of(out))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    *operands, out, lse, dout = inputs
    wanted = expect_heads(operands, attrs)
    composes = out == dout == wanted and lse == lse_of(wanted)
    expected = "what attention reads and gives, and a gradient like out"
    expect(composes, "attention_grad shapes do not compose", got=shapes(inputs), expected=expected)
    return tuple(operands[: 1 if is_packed(len(operands)) else 3 + has_sinks(attrs)])


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    found = [AxisSignature(s.operands, (s.rows, s.statistics)) for s in head_splits(inputs, attrs, parts)]
    if not is_packed(len(inputs)):
        linear_in_v = (B, B, P, B)[: len(inputs)]
        found.append(AxisSignature(linear_in_v, (P, B)))
    return found


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    operands = inputs[:-3]
    whole: tuple[Sbp, ...] = (B,) * len(operands)
    found = [
        AxisSignature((*s.operands, s.rows, s.statistics, s.rows), s.gradients)
        for s in head_splits(operands, attrs, parts)
    ]
    if not is_packed(len(operands)):
        keys = key_split(len(operands), attrs)
        found.append(AxisSignature((*keys.operands, B, B, B), keys.gradients))
        linear_in_v_and_out = (B, B, P, B)[: len(operands)]
        found.append(AxisSignature((*linear_in_v_and_out, P, B, B), (P, P, B, P)[: len(outputs)]))
    return [*found, AxisSignature((*whole, B, B, P), (P,) * len(outputs))]


def _scratch(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    return heads_scratch(inputs, outputs[0], attrs, backward=False)


def _scratch_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    return heads_scratch(inputs, inputs[-1], attrs, backward=True)


def _gradient(builder: GradientBuilder) -> None:
    (out, lse), operands = builder.op.outputs, builder.op.inputs
    inputs = (*operands, out, lse, builder.output_gradient())
    if is_packed(len(operands)):
        builder.give(0, builder.emit("dqkv", "attention_grad", inputs, builder.op.attrs))
        return
    labels = ("dq", "dk", "dv", "dsinks")[: 3 + has_sinks(builder.op.attrs)]
    gradients = builder.emit_many("grad", "attention_grad", inputs, builder.op.attrs, labels=labels)
    for position, gradient in enumerate(gradients):
        builder.give(position, gradient)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    keys, values = head_widths(inputs)
    return 2 * pairs_of(inputs, attrs) * (keys + values)


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    keys, values = head_widths(inputs[:-3])
    return 2 * pairs_of(inputs[:-3], attrs) * (3 * keys + 2 * values)


def _examples() -> tuple[Example, ...]:
    masked = (TensorSpec((5, 7, 4, 4, 2)), TensorSpec((5, 7), DType.INT32))
    return (
        Example((TensorSpec((4, 4, 5, 3, 2)),), attrs={"causal": 1}),
        Example(masked, attrs={"causal": 0}, ranges={1: SOME_HIDDEN}),
        Example((TensorSpec((4, 5, 7, 4, 2)),), attrs={"causal": 1, "window": 2}),
        *separate_examples(),
    )


def _examples_grad() -> tuple[Example, ...]:
    """The log-sum-exp lies above the scores, as it does in truth."""
    found = []
    for example in _examples():
        operands, out = example.inputs, expect_heads(example.inputs, example.attrs)
        above = {**example.ranges, len(operands) + 1: (1.0, 3.0)}
        found.append(replace(example, inputs=(*operands, out, lse_of(out), out), ranges=above))
    return tuple(found)


OPS = (
    OpDef(
        "attention",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        cost=Attention(),
        precision=PrecisionClass.HALF,
        recompute=RecomputeClass.ATTENTION,
        scratch=_scratch,
        examples=_examples(),
    ),
    OpDef(
        "attention_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad,
        cost=Attention(gradient=True),
        scratch=_scratch_grad,
        examples=_examples_grad(),
    ),
)
