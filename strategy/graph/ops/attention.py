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
    copied_keys,
    copied_queries,
    expect_heads,
    has_sinks,
    head_splits,
    head_widths,
    heads_of,
    heads_scratch,
    hide,
    is_packed,
    key_split,
    lse_of,
    packed_heads,
    pairs_of,
    query_blocks,
    samples_at_once,
    scores_of,
    seen_by,
    separate_examples,
    separate_heads,
    write_keys,
    write_queries,
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


def mixed_values(call: Call, heads: Heads) -> tuple[Array, Array]:
    """The values that every query sees, weighted: [b, n, c s, e], and the log-sum-exp of its scores, [b, n, c s]."""
    xp = call.xp
    q = copied_queries(call, "q", heads.q, heads.scoring.scale)
    k, v = copied_keys(call, "k", heads, heads.k), copied_keys(call, "v", heads, heads.v)
    probs = scores_of(call, heads, q, k)
    top, total = _weigh(call, heads, probs)
    mixed = call.workspace.get("mixed", (*q.shape[:-1], v.shape[-1]), q.dtype)
    xp.matmul(probs, v, out=mixed)
    mixed /= total
    return mixed, (xp.log(total) + top)[..., 0]


def _weigh(call: Call, heads: Heads, scores: Array) -> tuple[Array, Array]:
    """Rewrites scores to exp(score - top); gives the largest score of every row, `top`, and the sum: [.., rows, 1]."""
    xp = call.xp
    if as_machine_code(xp, (scores,)):
        top, total = (call.workspace.get(name, (*scores.shape[:-1], 1), scores.dtype) for name in ("top", "total"))
        rows = scores.reshape(-1, scores.shape[-1])
        row_kernels.weigh_rows(rows, *seen_by(heads), total.reshape(-1), top.reshape(-1))
        return top, total
    hide(call, heads, scores)
    top = scores.max(axis=-1, keepdims=True)
    scores -= top
    xp.exp(scores, out=scores)
    return top, scores.sum(axis=-1, keepdims=True)


@by_samples
def _run(call: Call) -> None:
    out, lse = call.outputs
    heads = heads_of(call, call.inputs)
    b, s, n, c, _ = heads.q.shape
    sums_of = lse.reshape(b, n, c, s)
    for queries, part in query_blocks(call, heads):
        mixed, sums = mixed_values(call, part)
        if has_sinks(call.attrs):
            total = call.xp.logaddexp(sums, by_run(part, call.inputs[3]))
            mixed *= call.xp.exp(sums - total)[..., None]
            sums = total
        sums_of[..., queries] = sums.reshape(b, n, c, -1)
        write_queries(out[:, queries], part, mixed)


def by_run(heads: Heads, sinks: Array) -> Array:
    """[h] -> [n, c s]: the sink of every row of queries."""
    _, s, n, c, _ = heads.q.shape
    rows: Array = sinks.reshape(n, c, 1).repeat(s, axis=2).reshape(n, c * s)
    return rows


def sinks_gradient(call: Call, sinks: Array, lse: Array, delta: Array) -> Array:
    """[h]: minus the sum of exp(sink - lse) delta over samples and rows, of lse and delta [b, h, s]."""
    total: Array = -(call.xp.exp(sinks[None, :, None] - lse) * delta).sum(axis=(0, 2))
    return total


def backward(
    call: Call, heads: Heads, normaliser: Array, dout: Array, delta: Array, targets: Heads, *, add: bool = False
) -> None:
    """Gradients of rows p v, where p = exp(scores - normaliser); where they `add`, those of keys and values are sums.

    dv = p^T do; ds = p (do v^T - delta), times the slope of the cap; dq = scale ds k; dk = scale ds^T q. `normaliser`
    and `delta` are [b, n, c s], `dout` is [b, n, c s, e]; `targets` are views of the gradients.
    """
    xp = call.xp
    q = copied_queries(call, "q", heads.q, heads.scoring.scale)
    k, v = copied_keys(call, "k", heads, heads.k), copied_keys(call, "v", heads, heads.v)
    slope = call.workspace.get("slope", (*q.shape[:-1], k.shape[2]), q.dtype) if heads.scoring.softcap else None
    probs = scores_of(call, heads, q, k, slope)
    ds = call.workspace.get("ds", probs.shape, probs.dtype)
    xp.matmul(dout, v.transpose(0, 1, 3, 2), out=ds)
    _weigh_again(call, heads, probs, ds, normaliser, delta)
    by_value = call.workspace.get("by_value", v.shape, v.dtype)
    xp.matmul(probs.transpose(0, 1, 3, 2), dout, out=by_value)
    write_keys(targets.v, heads, by_value, add=add)
    if slope is not None:
        ds *= slope
    by_key = call.workspace.get("by_key", k.shape, k.dtype)
    xp.matmul(ds.transpose(0, 1, 3, 2), q, out=by_key)  # q already carries the scale
    write_keys(targets.k, heads, by_key, add=add)
    by_query = call.workspace.get("by_query", q.shape, q.dtype)
    xp.matmul(ds, k, out=by_query)
    by_query *= heads.scoring.scale
    write_queries(targets.q, heads, by_query)


def _weigh_again(call: Call, heads: Heads, scores: Array, slopes: Array, normaliser: Array, delta: Array) -> None:
    """Rewrites scores to p = exp(score - normaliser), and slopes to (slope - delta) p."""
    if as_machine_code(call.xp, (scores,)):
        rows, by_row = (-1, scores.shape[-1]), [as_operand(x, (-1,)) for x in (normaliser, delta)]
        row_kernels.weigh_rows_again(scores.reshape(rows), slopes.reshape(rows), *seen_by(heads), *by_row)
        return
    hide(call, heads, scores)
    scores -= normaliser[..., None]
    call.xp.exp(scores, out=scores)
    slopes -= delta[..., None]
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
    if heads.causal:
        targets.k[...] = 0
        targets.v[...] = 0
    by_query = dout.reshape(b, s, n, c, -1)
    for queries, part in query_blocks(call, heads):
        rows = (b, n, -1)
        do = copied_queries(call, "do", by_query[:, queries])
        normaliser, slopes = (x.reshape(b, n, c, s)[..., queries].reshape(rows) for x in (lse, delta))
        keys = slice(part.first_key - heads.first_key, part.first_key - heads.first_key + part.k.shape[1])
        of_part = replace(targets, q=targets.q[:, queries], k=targets.k[:, keys], v=targets.v[:, keys])
        backward(call, part, normaliser, do, slopes, of_part, add=heads.causal)


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
