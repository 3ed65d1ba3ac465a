"""Attention whose keys and values may be split over their positions: context parallelism that gathers no keys.

    attention_max         q, k, (visible)         -> top[b, h, s]             the largest score of every row
    attention_terms       q, k, v, (visible), top -> terms[b, s, h, d + 1]    sums of p v, and of p in the last column
    attention_terms_grad  the same, dterms        -> dq, dk, dv

with p = exp(scores - top). Over split keys, `top` is P(max) and `terms` P(sum), so that boxing does what a ring of
ranks does block by block (Liu et al. 2023, arXiv:2310.01889, section 3); attention is the first d columns over the
last. `top` cancels in that quotient: it is a constant of the backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.graph import Attrs
from strategy.ops.attention import backward, gradient_heads
from strategy.ops.base import AxisSignature, Call, Example, OpDef, Specs, expect, shapes
from strategy.ops.gradient import GradientBuilder
from strategy.ops.heads import (
    copied_keys,
    copied_queries,
    expect_heads,
    head_splits,
    heads_of,
    key_split,
    lse_of,
    masked_scores,
    product_flop,
    separate_examples,
    write_queries,
)
from strategy.sbp import B, P, Partial, Reduce
from strategy.tensor import TensorSpec

_P_MAX = Partial(Reduce.MAX)


def _operands_of_max(inputs: Specs) -> Specs:
    """q, k, (visible) as q, k, k, (visible)."""
    return (*inputs[:2], *inputs[1:])


def _terms_of(out: TensorSpec) -> TensorSpec:
    return TensorSpec((*out.shape[:3], out.shape[3] + 1), out.dtype.wide)


def _infer_max(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(len(inputs) in (2, 3), "attention_max operands", got=shapes(inputs), expected="q, k, and visible or not")
    return (lse_of(expect_heads(_operands_of_max(inputs), attrs)),)


def _expect_terms(operands: Specs, top: TensorSpec, attrs: Attrs) -> TensorSpec:
    expect(len(operands) in (3, 4), "attention_terms operands", got=shapes(operands), expected="q, k, v, maybe visible")
    out = expect_heads(operands, attrs)
    expect(top == lse_of(out), "attention_terms needs the rows' maxima", got=top, expected=str(lse_of(out)))
    return _terms_of(out)


def _infer_terms(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_expect_terms(inputs[:-1], inputs[-1], attrs),)


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    *operands, top, dterms = inputs
    wanted = _expect_terms(operands, top, attrs)
    expect(dterms == wanted, "attention_terms_grad shapes do not compose", got=dterms, expected=str(wanted))
    return tuple(operands[:3])


def _signatures_max(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    operands = _operands_of_max(inputs)
    splits = [(s.operands, s.statistics) for s in head_splits(operands, attrs, parts)]
    splits.append((key_split(len(operands)).operands, _P_MAX))
    return [AxisSignature((split[0], *split[2:]), (top,)) for split, top in splits]


def _signatures_terms(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    splits = [*head_splits(inputs[:-1], attrs, parts), key_split(len(inputs) - 1)]
    return [AxisSignature((*s.operands, s.statistics), (s.rows,)) for s in splits]


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    operands = inputs[:-2]
    found = [
        AxisSignature((*s.operands, s.statistics, s.rows), s.gradients) for s in head_splits(operands, attrs, parts)
    ]
    keys = key_split(len(operands))
    linear = AxisSignature((B,) * (len(inputs) - 1) + (P,), (P, P, P))
    return [*found, AxisSignature((*keys.operands, B, B), keys.gradients), linear]


def _run_max(call: Call) -> None:
    q, k = call.inputs[:2]
    heads = heads_of(call, (q, k, *call.inputs[1:]))
    scores = masked_scores(call, heads, copied_queries(call, "q", heads.q), copied_keys(call, "k", heads, heads.k))
    scores.max(axis=-1, out=call.outputs[0].reshape(scores.shape[:3]))


def _run_terms(call: Call) -> None:
    xp, (*operands, top), terms = call.xp, call.inputs, call.outputs[0]
    heads = heads_of(call, tuple(operands))
    q = copied_queries(call, "q", heads.q)
    k, v = copied_keys(call, "k", heads, heads.k), copied_keys(call, "v", heads, heads.v)
    probs = masked_scores(call, heads, q, k)
    probs -= top.reshape(q.shape[:3])[..., None]
    xp.exp(probs, out=probs)
    rows = call.workspace.get("rows", (*q.shape[:3], q.shape[3] + 1), q.dtype)
    rows[..., :-1] = xp.matmul(probs, v)
    rows[..., -1] = probs.sum(axis=-1)
    write_queries(terms, heads, rows)


def _run_grad(call: Call) -> None:
    """Of sums p v and p: the second adds its gradient to every dp of the row, so delta is its negative."""
    *operands, top, dterms = call.inputs
    heads = heads_of(call, tuple(operands))
    b, s, n, c, d = heads.q.shape
    both = copied_queries(call, "dterms", dterms.reshape(b, s, n, c, d + 1))
    dout = call.workspace.get("dout", (*both.shape[:3], d), both.dtype)
    dout[...] = both[..., :-1]
    backward(call, heads, top.reshape(both.shape[:3]), dout, -both[..., -1], gradient_heads(call))


def _gradient(builder: GradientBuilder) -> None:
    inputs = (*builder.op.inputs, builder.output_gradient())
    labels = ("dq", "dk", "dv")
    gradients = builder.emit_many("grad", "attention_terms_grad", inputs, builder.op.attrs, labels=labels)
    for position, gradient in enumerate(gradients):
        builder.give(position, gradient)


def _flop_max(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return product_flop(_operands_of_max(inputs))


def _flop_terms(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * product_flop(inputs[:-1])


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 5 * product_flop(inputs[:-2])


def _examples_max() -> tuple[Example, ...]:
    return tuple(
        replace(
            example,
            inputs=(*example.inputs[:2], *example.inputs[3:]),
            ranges={at - 1: bounds for at, bounds in example.ranges.items()},
        )
        for example in separate_examples()
    )


def _examples_terms(*, backward: bool) -> tuple[Example, ...]:
    """The maxima lie above the scores, as they do in truth."""
    found = []
    for example in separate_examples():
        operands, out = example.inputs, expect_heads(example.inputs, example.attrs)
        above = {**example.ranges, len(operands): (1.0, 3.0)}
        inputs = (*operands, lse_of(out), *([_terms_of(out)] if backward else []))
        found.append(replace(example, inputs=inputs, ranges=above))
    return tuple(found)


OPS = (
    OpDef("attention_max", _infer_max, _flop_max, _signatures_max, _run_max, examples=_examples_max()),
    OpDef(
        "attention_terms",
        _infer_terms,
        _flop_terms,
        _signatures_terms,
        _run_terms,
        _gradient,
        examples=_examples_terms(backward=False),
    ),
    OpDef(
        "attention_terms_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad,
        examples=_examples_terms(backward=True),
    ),
)
