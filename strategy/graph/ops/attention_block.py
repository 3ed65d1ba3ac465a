"""Attention block by block: the keys and values of one block at a time, as they come round a ring of ranks.

    attention_block       q, k, v, (visible), (out, lse)      -> out[b, s, h, e], lse[b, h, s]
    attention_block_grad  q, k, v, (visible), out, lse, dout  -> the block's part of dq, dk, dv

Queries and keys are cut into `chunks` balanced pieces. In block `shift`, the queries of chunk c see the keys of chunk
(c + shift) mod chunks; `out` and `lse`, if given, are what the blocks before have found, and the block's own rows are
merged with them (Milakov and Gimelshein 2018, arXiv:1805.02867; Liu et al. 2023, arXiv:2310.01889, section 3). After
all the blocks, `out` and `lse` are those of `attention`; the parts of the gradients add up to its gradients.

On an axis of `chunks` ranks, each has the queries of its chunk, and keys and values come as `S(1)+shift`. Causal rows
see nothing of a later chunk, and those of a window nothing of one that lies before it; such a pair of chunks does no
work. The last ranks of a ring so have most of it, and those of the first wait: chunks are not dealt out in pairs from
both ends. Sinks, in place of `visible`, are what the first block begins with; their gradient is that block's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strategy.graph.graph import Attrs
from strategy.graph.ops.attention import attend, backward, sinks_gradient
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, expect, int_attr, shapes
from strategy.graph.ops.heads import (
    HIDDEN,
    SOME_HIDDEN,
    Heads,
    expect_heads,
    has_sinks,
    head_splits,
    head_widths,
    heads_scratch,
    is_masked,
    key_split,
    lse_of,
    query_rows,
    separate_heads,
)
from strategy.graph.ops.scratch import SCRATCH_ALIGNMENT, ScratchSizes
from strategy.graph.ops.traits import Attention
from strategy.sbp.sbp import B, P, Sbp, Split, balanced_split
from strategy.sbp.tensor import DType, TensorSpec


@dataclass(frozen=True, slots=True)
class _Pair:
    """Rows of queries, [begin, end), and keys of this block; `diagonal` if the rows may not see all of these."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    diagonal: bool


def _pairs(attrs: Attrs, rows: tuple[int, int], keys: tuple[int, int]) -> Iterator[_Pair]:
    """What the queries and keys in these ranges have to do with each other."""
    chunks, shift, causal = (int_attr(attrs, key) for key in ("chunks", "shift", "causal"))
    window = int_attr(attrs, "window") if attrs.get("window") else 0
    row_chunks = balanced_split(0, int_attr(attrs, "rows"), chunks)
    key_chunks = balanced_split(0, int_attr(attrs, "keys"), chunks)
    for chunk, held in enumerate(row_chunks):
        seen = (chunk + shift) % chunks
        if (causal and seen > chunk) or (window and held[0] - key_chunks[seen][1] + 1 >= window):
            continue
        (low, high), (first, last) = _shared(held, rows), _shared(key_chunks[seen], keys)
        if low < high and first < last:
            yield _Pair((low, high), (first, last), bool(window) or (bool(causal) and shift == 0))


def _shared(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


@dataclass(frozen=True, slots=True)
class _Cut:
    """The rows and keys of one pair in local arrays, and the operands' views there."""

    rows: slice
    keys: slice
    heads: Heads


def _cuts(call: Call, visible: Array | None) -> Iterator[_Cut]:
    """The pairs of this rank's pieces."""
    q, k, v = call.inputs[:3]
    row_box, key_box = call.input_boxes[0][1], call.input_boxes[1][1]
    for pair in _pairs(call.attrs, row_box, key_box):
        rows = slice(pair.rows[0] - row_box[0], pair.rows[1] - row_box[0])
        keys = slice(pair.keys[0] - key_box[0], pair.keys[1] - key_box[0])
        heads = separate_heads(call, q[:, rows], k[:, keys], v[:, keys], None if visible is None else visible[:, keys])
        heads = replace(heads, first_query=pair.rows[0], first_key=pair.keys[0], causal=pair.diagonal)
        yield _Cut(rows, keys, heads)


def _run(call: Call) -> None:
    out, lse = call.outputs
    goes_on = _goes_on(len(call.inputs))
    operands = call.inputs[:-2] if goes_on else call.inputs
    nothing = operands[3][None, :, None] if has_sinks(call.attrs) else HIDDEN
    out[...], lse[...] = call.inputs[-2:] if goes_on else (0, nothing)
    for cut in _cuts(call, operands[-1] if is_masked(len(operands), call.attrs) else None):
        _merge(call, cut, out[:, cut.rows], lse[:, :, cut.rows])


def _merge(call: Call, cut: _Cut, out: Array, lse: Array) -> None:
    """Rows of more keys into views [b, s, h, d] and [b, h, s] of the rows so far."""
    xp = call.xp
    found = call.workspace.get("found", out.shape, out.dtype)
    more = attend(call, cut.heads, found.reshape(*cut.heads.q.shape[:-1], -1)).reshape(lse.shape)
    total = xp.logaddexp(lse, more)
    found *= _by_row(xp.exp(more - total))
    out *= _by_row(xp.exp(lse - total))
    out += found
    lse[...] = total


def _by_row(weights: Array) -> Array:
    """[b, h, s] -> [b, s, h, 1]."""
    return weights.transpose(0, 2, 1)[..., None]


def _run_grad(call: Call) -> None:
    *operands, out, lse, dout = call.inputs
    for gradient in call.outputs:
        gradient[...] = 0
    if has_sinks(call.attrs):
        delta = call.xp.einsum("bshd,bshd->bhs", dout, out)
        call.outputs[3][...] = sinks_gradient(call, operands[3], lse, delta)
    for cut in _cuts(call, operands[-1] if is_masked(len(operands), call.attrs) else None):
        b, s, n, c, d = cut.heads.q.shape
        rows, by_head = dout[:, cut.rows], (b, n, c * s)
        delta = call.xp.einsum("bshd,bshd->bhs", rows, out[:, cut.rows])
        do = query_rows(call, "do", rows.reshape(b, s, n, c, -1))
        dq, dk, dv = call.outputs[:3]
        targets = replace(cut.heads, q=dq[:, cut.rows].reshape(b, s, n, c, d), k=dk[:, cut.keys], v=dv[:, cut.keys])
        backward(call, cut.heads, lse[:, :, cut.rows].reshape(by_head), do, delta.reshape(by_head), targets)


def _goes_on(operands: int) -> bool:
    """Whether the last two of so many operands are what the blocks before have found."""
    return operands > 4


def _operands(inputs: Specs) -> Specs:
    """q, k, v, (visible)."""
    return inputs[:-2] if _goes_on(len(inputs)) else inputs


def _expect_block(operands: Specs, attrs: Attrs) -> TensorSpec:
    expected = "q, k, v, maybe visible or sinks"
    expect(len(operands) in (3, 4), "attention_block operands", got=shapes(operands), expected=expected)
    out = expect_heads(operands, attrs)
    rows, keys, chunks, shift = (int_attr(attrs, key) for key in ("rows", "keys", "chunks", "shift"))
    fits = (rows, keys) == (operands[0].shape[1], operands[1].shape[1]) and 0 <= shift < chunks <= min(rows, keys)
    expected = "rows of queries and keys as they are, 0 <= shift < chunks, and no empty chunk"
    expect(fits, "attention_block has no such block", got=(shapes(operands), dict(attrs)), expected=expected)
    return out


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    out = _expect_block(_operands(inputs), attrs)
    found = (out, lse_of(out))
    if _goes_on(len(inputs)):
        expect(
            tuple(inputs[-2:]) == found,
            "attention_block goes on with other rows",
            got=shapes(inputs),
            expected=str(found),
        )
    return found


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    *operands, out, lse, dout = inputs
    wanted = _expect_block(operands, attrs)
    composes = out == dout == wanted and lse == lse_of(wanted)
    expected = "what attention reads and gives, and a gradient like out"
    expect(composes, "attention_block_grad shapes do not compose", got=shapes(inputs), expected=expected)
    return tuple(operands[: 3 + has_sinks(attrs)])


def _ring(operands: Specs, attrs: Attrs, parts: int) -> tuple[Sbp, ...]:
    """How the operands come round a ring of `parts` ranks; nothing where the chunks are not theirs.

    An earlier axis of the mesh may have cut rows or keys: then what is left of the chunks is no ring's.
    """
    found = (parts, operands[0].shape[1], operands[1].shape[1])
    if found != (int_attr(attrs, "chunks"), int_attr(attrs, "rows"), int_attr(attrs, "keys")):
        return ()
    coming = Split(1, int_attr(attrs, "shift"))
    return (Split(1), coming, coming, B if has_sinks(attrs) else coming)[: len(operands)]


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    operands, goes_on = _operands(inputs), _goes_on(len(inputs))

    def signature(reads: tuple[Sbp, ...], rows: Sbp, statistics: Sbp) -> AxisSignature:
        return AxisSignature((*reads, rows, statistics) if goes_on else reads, (rows, statistics))

    found = [signature(s.operands, s.rows, s.statistics) for s in head_splits(operands, attrs, parts)]
    ring = _ring(operands, attrs, parts)
    if ring:
        found.append(signature(ring, Split(1), Split(2)))
    return [*found, signature((B, B, P, B)[: len(operands)], P, B)]


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    operands = inputs[:-3]
    found = [
        AxisSignature((*s.operands, s.rows, s.statistics, s.rows), s.gradients)
        for s in head_splits(operands, attrs, parts)
    ]
    keys, ring = key_split(len(operands), attrs), _ring(operands, attrs, parts)
    found.append(AxisSignature((*keys.operands, B, B, B), keys.gradients))
    if ring:
        found.append(AxisSignature((*ring, Split(1), Split(2), Split(1)), (*ring[:3], P)[: len(outputs)]))
    found.append(AxisSignature((*(B, B, P, B)[: len(operands)], P, B, B), (P, P, B, P)[: len(outputs)]))
    return [*found, AxisSignature((*(B,) * len(operands), B, B, P), (P,) * len(outputs))]


def _pairs_of(operands: Specs, attrs: Attrs) -> int:
    """Pairs of queries and keys over all samples and heads; chunks that see nothing of each other have none.

    Of pieces, where all depends on the rank, those of the busiest.
    """
    (b, s, h, _), t = operands[0].shape, operands[1].shape[1]
    rows, keys, chunks = (int_attr(attrs, key) for key in ("rows", "keys", "chunks"))
    if (s, t) == (rows, keys):
        pairs = sum((p.rows[1] - p.rows[0]) * (p.keys[1] - p.keys[0]) for p in _pairs(attrs, (0, s), (0, t)))
    else:
        pairs = min(s * -(-keys // chunks), t * -(-rows // chunks))
    return b * h * pairs


def _scratch(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """That of attention, and the rows that a pair of chunks gives."""
    out, pairs = outputs[0], int_attr(attrs, "chunks")
    of_heads = heads_scratch(inputs, out, attrs, backward=False, pairs=pairs)
    return ScratchSizes((*of_heads.anew, out.nbytes + pairs * SCRATCH_ALIGNMENT), of_heads.kept)


def _scratch_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    return heads_scratch(inputs, inputs[-1], attrs, backward=True, pairs=int_attr(attrs, "chunks"))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    keys, values = head_widths(inputs)
    return 2 * _pairs_of(_operands(inputs), attrs) * (keys + values)


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    keys, values = head_widths(inputs)
    return 2 * _pairs_of(inputs[:-3], attrs) * (3 * keys + 2 * values)


def _examples() -> tuple[Example, ...]:
    """Even and uneven chunks, causal and not, grouped and not, masked; the first block and later ones."""
    even, uneven = TensorSpec((4, 4, 4, 2)), TensorSpec((4, 7, 4, 2))
    queries, grouped, visible = TensorSpec((4, 5, 8, 2)), TensorSpec((4, 7, 4, 2)), TensorSpec((4, 7), DType.INT32)
    one = {"group": 1, "rows": 7, "keys": 7, "chunks": 3}
    return (
        Example((even,) * 3, attrs={"causal": 1, "group": 1, "rows": 4, "keys": 4, "chunks": 2, "shift": 0}),
        Example((uneven,) * 3, attrs={**one, "causal": 1, "shift": 2}),
        Example((uneven,) * 3, attrs={**one, "causal": 0, "shift": 1}),
        Example(
            (queries, grouped, grouped, visible),
            attrs={"causal": 0, "group": 2, "rows": 5, "keys": 7, "chunks": 3, "shift": 2},
            ranges={3: SOME_HIDDEN},
        ),
        Example((uneven, uneven, TensorSpec((4, 7, 4, 3))), attrs={**one, "causal": 1, "shift": 2, "window": 3}),
        Example((uneven, uneven, uneven, TensorSpec((4,))), attrs={**one, "causal": 1, "shift": 0, "sinks": 1}),
    )


def _examples_forward() -> tuple[Example, ...]:
    found = []
    for example in _examples():
        out = expect_heads(example.inputs, example.attrs)
        found.append(example)
        if not has_sinks(example.attrs):
            found.append(replace(example, inputs=(*example.inputs, out, lse_of(out))))
    return tuple(found)


def _examples_grad() -> tuple[Example, ...]:
    """The log-sum-exp lies above the scores, as it does in truth."""
    found = []
    for example in _examples():
        out = expect_heads(example.inputs, example.attrs)
        above = {**example.ranges, len(example.inputs) + 1: (1.0, 3.0)}
        found.append(replace(example, inputs=(*example.inputs, out, lse_of(out), out), ranges=above))
    return tuple(found)


OPS = (
    OpDef(
        "attention_block",
        _infer,
        _flop,
        _signatures,
        _run,
        cost=Attention(block=True),
        scratch=_scratch,
        examples=_examples_forward(),
    ),
    OpDef(
        "attention_block_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad,
        cost=Attention(block=True, gradient=True),
        scratch=_scratch_grad,
        examples=_examples_grad(),
    ),
)
