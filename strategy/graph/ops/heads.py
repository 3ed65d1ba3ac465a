"""Heads: the operands of attention, whichever way they come, and how they may be split.

Separate, they are q[b, s, h, d], k[b, t, g, d] and v[b, t, g, e]; query head i reads key head i // group, h = g group
(Ainslie et al. 2023, arXiv:2305.13245); values may be of another width than keys. Packed, they are one
qkv[b, s, g, group + 2, d]: the queries of one group and their key and value lie together, so that splitting the groups
splits the projection's columns. After either there may be integers visible[b, t]: a key is hidden where it is zero,
and, if `causal`, from the queries before it. Every query is to see some key.

Behind separate operands there may be sinks[h], a score per head that takes its share of every soft-max and brings no
value (Xiao et al. 2023, arXiv:2309.17453, as learned by gpt-oss). Attributes, each absent where it says nothing:

    window   a query sees itself and the window - 1 keys before it alone (Beltagy et al. 2020, arXiv:2004.05150)
    scale    of products, in place of 1 / sqrt(d)
    softcap  scores are cap tanh(score / cap) (Gemma 2, arXiv:2408.00118, section 2)
    sinks    1 where the last operand is sinks

Queries may be split while keys and values are whole: a rank finds its positions and key heads by its boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Array, Call, Example, Specs, expect, float_attr, int_attr, shapes
from strategy.graph.ops.scratch import SCRATCH_ALIGNMENT, ScratchSizes, sized
from strategy.sbp.sbp import B, P, Sbp, Split
from strategy.sbp.tensor import DType, TensorSpec

_QUERIES = 64
"""Of a block; smaller ones skip more of what is hidden, and multiply more slowly."""
_SCORES = 1 << 18
"""Of a block, over as many samples as are taken at once: a mebibyte of float32."""
HIDDEN = -1e30
"""Added to the score of a hidden key: finite, so that a piece of the keys that a query does not see has a maximum."""


SOME_HIDDEN = (0, 5)
"""Range of `visible` in examples, of which some are zero and hardly ever all."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores follow from products of queries and keys."""

    scale: float
    softcap: float
    """0: none."""
    window: int
    """0: every position."""


def scoring_of(attrs: Attrs, width: int) -> Scoring:
    """What the attributes say of scores, for heads of this width.

    Raises:
        InputError: a figure is not possible.
    """
    scale = float_attr(attrs, "scale") if "scale" in attrs else 1.0 / math.sqrt(width)
    softcap = float_attr(attrs, "softcap") if "softcap" in attrs else 0.0
    window = int_attr(attrs, "window") if "window" in attrs else 0
    legal = scale > 0 and softcap >= 0 and window >= 0 and (not window or int_attr(attrs, "causal") == 1)
    expected = "scale > 0, softcap >= 0, window >= 0, and a window of causal attention alone"
    expect(legal, "attention has no such scores", got=dict(attrs), expected=expected)
    return Scoring(scale, softcap, window)


def has_sinks(attrs: Attrs) -> bool:
    """Whether the last operand is sinks."""
    return bool(attrs.get("sinks"))


@dataclass(frozen=True, slots=True)
class Heads:
    """Views of the operands. The n runs of c query heads read one key head each; n c = h."""

    q: Array
    """[b, s, n, c, d]"""
    k: Array
    """[b, t, g, d]"""
    v: Array
    """[b, t, g, e]"""
    key_heads: tuple[int, ...]
    """Which of the g key heads each run reads."""
    first_query: int
    first_key: int
    causal: bool
    visible: Array | None
    """[b, t]"""
    scoring: Scoring

    @property
    def one_to_one(self) -> bool:
        """Whether run i reads key head i, and there are no others."""
        return self.key_heads == tuple(range(self.k.shape[2]))


def is_packed(operands: int) -> bool:
    """Whether so many operands are (qkv) or (qkv, visible) rather than (q, k, v) or (q, k, v, visible)."""
    return operands < 3


def is_masked(operands: int, attrs: Attrs) -> bool:
    """Whether the last of so many operands is `visible`."""
    return operands in (2, 4) and not has_sinks(attrs)


def packed_heads(call: Call, qkv: Array, visible: Array | None) -> Heads:
    """Query, key and value of a packed projection [b, s, g, r + 2, d], or of its gradient."""
    r = qkv.shape[3] - 2
    q, k, v = qkv[:, :, :, :r], qkv[:, :, :, r], qkv[:, :, :, r + 1]
    scoring = scoring_of(call.attrs, qkv.shape[4])
    return Heads(q, k, v, tuple(range(qkv.shape[2])), 0, 0, bool(int_attr(call.attrs, "causal")), visible, scoring)


def separate_heads(call: Call, q: Array, k: Array, v: Array, visible: Array | None) -> Heads:
    """The longest runs of this rank's query heads within one key head each."""
    group = int_attr(call.attrs, "group")
    query_box, key_box = call.input_boxes[0], call.input_boxes[1]
    (begin, end), first_key_head = query_box[2], key_box[2][0]
    c = math.gcd(begin, end, group)
    b, s, _, d = q.shape
    return Heads(
        q.reshape(b, s, -1, c, d),
        k,
        v,
        tuple(head // group - first_key_head for head in range(begin, end, c)),
        query_box[1][0],
        key_box[1][0],
        bool(int_attr(call.attrs, "causal")),
        visible,
        scoring_of(call.attrs, d),
    )


def heads_of(call: Call, operands: tuple[Array, ...]) -> Heads:
    """The operands' views."""
    visible = operands[-1] if is_masked(len(operands), call.attrs) else None
    if is_packed(len(operands)):
        return packed_heads(call, operands[0], visible)
    q, k, v = operands[:3]
    return separate_heads(call, q, k, v, visible)


def _multiplies_in_place(call: Call) -> bool:
    """Whether matrix products read and write matrices whose rows lie apart, as BLAS does: no copy is needed then."""
    return call.xp is np and bool(call.inputs[0].dtype in (np.float32, np.float64))


def query_rows(call: Call, name: str, x: Array) -> Array:
    """[b, s, n, c, d] -> [b, n, c s, d], for matrix products: a view, or a copy where rows of a run lie otherwise."""
    b, s, n, c, d = x.shape
    if c == 1 and _multiplies_in_place(call):
        return x[:, :, :, 0].transpose(0, 2, 1, 3)
    out = call.workspace.get(name, (b, n, c, s, d), x.dtype)
    out[...] = x.transpose(0, 2, 3, 1, 4)
    return out.reshape(b, n, c * s, d)


def key_rows(call: Call, name: str, heads: Heads, x: Array) -> Array:
    """[b, t, g, d] -> [b, n, t, d], the key head of every run: a view or a copy as of `query_rows`."""
    b, t, _, d = x.shape
    if heads.one_to_one and _multiplies_in_place(call):
        return x.transpose(0, 2, 1, 3)
    out = call.workspace.get(name, (b, len(heads.key_heads), t, d), x.dtype)
    head_first = x.transpose(0, 2, 1, 3)
    out[...] = head_first if heads.one_to_one else head_first[:, list(heads.key_heads)]
    return out


def heads_scratch(inputs: Specs, out: TensorSpec, attrs: Attrs, *, backward: bool, pairs: int = 1) -> ScratchSizes:
    """What `query_rows`, `key_rows`, `scores_of` and attention over them ask for at most, with all queries at once.

    Of `inputs` the first are the operands, `out` is [b, s, h, e]; one run for every head is counted, of which key heads
    that are shared make fewer. Where attention comes in `pairs` of pieces, those of all pairs are no larger together.
    """
    q, (b, s, h, e) = inputs[0], out.shape
    d, t = q.shape[-1], s if len(q.shape) == 5 else inputs[1].shape[1]
    n = q.shape[2] if len(q.shape) == 5 else h
    by_query, by_key, by_pair = (b, h, s, d), (b, n, t, d), (b, h, s, t)
    found = [by_query, by_key, (b, n, t, e), by_pair, (b, h, s, e)]
    if backward:
        found += [by_query, by_key, (b, n, t, e), by_pair]
        found += [by_pair] if attrs.get("softcap") else []
    room = pairs * SCRATCH_ALIGNMENT if pairs > 1 else 0
    kept = sized(q.dtype.nbytes, (s, t)) if attrs.get("causal") else ()
    return ScratchSizes(
        tuple(nbytes + room for nbytes in sized(q.dtype.nbytes, *found)), tuple(nbytes + room for nbytes in kept)
    )


def query_blocks(call: Call, heads: Heads) -> Iterator[tuple[slice, Heads]]:
    """Blocks of queries, each with the keys that some of them see: what a mask hides whole is not computed.

    Other array modules than NumPy, and attention without a causal mask, take all queries at once.
    """
    s, t = heads.q.shape[1], heads.k.shape[1]
    if call.xp is not np or not heads.causal or heads.visible is not None:
        yield slice(0, s), heads
        return
    for begin in range(0, s, _QUERIES):
        end = min(begin + _QUERIES, s)
        ahead = heads.first_query - heads.first_key
        window = heads.scoring.window
        last = min(max(ahead + end, 1), t)
        first = min(max(ahead + begin - window + 1, 0), last - 1) if window else 0
        yield (
            slice(begin, end),
            replace(
                heads,
                q=heads.q[:, begin:end],
                k=heads.k[:, first:last],
                v=heads.v[:, first:last],
                first_query=heads.first_query + begin,
                first_key=heads.first_key + first,
            ),
        )


def samples_at_once(operands: Sequence[Array], attrs: Attrs) -> int:
    """Of how many samples a block of queries has about `_SCORES` scores; one at least.

    Behind the operands there may be what the backward pass reads.
    """
    _, s, *heads, _ = operands[0].shape
    h, t = (heads[0] * (heads[1] - 2), s) if len(heads) > 1 else (heads[0], operands[1].shape[1])
    queries = min(s, _QUERIES) if int_attr(attrs, "causal") else s
    return max(1, _SCORES // max(1, int(h * queries * t)))


def scores_of(call: Call, heads: Heads, q: Array, k: Array, slope: Array | None = None) -> Array:
    """q k^T below the cap, with keys that are not visible far below: [b, n, c s, t]; `left_scale` is not in it yet.

    `slope`, if given, is filled with that of the cap. What is causal is not looked at (see `hide`).
    """
    xp = call.xp
    b, n, rows, _ = q.shape
    t = k.shape[2]
    scores = call.workspace.get("scores", (b, n, rows, t), q.dtype)
    xp.matmul(q, k.transpose(0, 1, 3, 2), out=scores)
    if heads.scoring.softcap:
        scores *= heads.scoring.scale / heads.scoring.softcap
        xp.tanh(scores, out=scores)
        if slope is not None:
            xp.multiply(scores, scores, out=slope)
            xp.subtract(1.0, slope, out=slope)
        scores *= heads.scoring.softcap
    if heads.visible is not None:
        scores += xp.where(heads.visible == 0, HIDDEN, 0.0).astype(q.dtype)[:, None, None, :]
    return scores


def left_scale(heads: Heads) -> float:
    """What `scores_of` are to be multiplied by still: a cap is of scores that have been."""
    return 1.0 if heads.scoring.softcap else heads.scoring.scale


def hide(call: Call, heads: Heads, scores: Array) -> None:
    """Push far below what a causal mask, or a window, hides."""
    if heads.causal:
        (b, n, rows, t), s = scores.shape, heads.q.shape[1]
        by_query = scores.reshape(b, n, rows // s, s, t)
        name = f"unseen {heads.first_query - heads.first_key} {s} {t}"
        by_query += call.workspace.constant(name, (s, t), scores.dtype, lambda: _unseen(call, heads, s, t))


def seen_by(heads: Heads) -> tuple[int, int, int]:
    """Which keys each query sees, as `row_kernels` are told: queries, keys ahead of the first one, the window."""
    ahead = heads.first_query - heads.first_key if heads.causal else heads.k.shape[1]
    return heads.q.shape[1], ahead, heads.scoring.window


def _unseen(call: Call, heads: Heads, s: int, t: int) -> Array:
    """[s, t]: far below zero where the key comes after the query, or before its window; zero elsewhere."""
    xp = call.xp
    queries = xp.arange(heads.first_query, heads.first_query + s)
    keys = xp.arange(heads.first_key, heads.first_key + t)
    distance = queries[:, None] - keys[None, :]
    hidden = distance < 0
    if heads.scoring.window:
        hidden |= distance >= heads.scoring.window
    return xp.where(hidden, HIDDEN, 0.0).astype(heads.q.dtype)


def multiply_queries(call: Call, name: str, left: Array, right: Array, target: Array) -> None:
    """left right, which is [b, n, c s, x], into a view [b, s, n, c, x] of a result."""
    b, s, n, c, wide = target.shape
    if c == 1 and _multiplies_in_place(call):
        call.xp.matmul(left, right, out=target[:, :, :, 0].transpose(0, 2, 1, 3))
        return
    rows = call.workspace.get(name, (b, n, c * s, wide), target.dtype)
    call.xp.matmul(left, right, out=rows)
    target[...] = rows.reshape(b, n, c, s, wide).transpose(0, 3, 1, 2, 4)


def multiply_keys(
    call: Call, name: str, left: Array, right: Array, target: Array, heads: Heads, *, add: bool = False
) -> None:
    """left right, which is [b, n, t, d], into a view [b, t, g, d]: runs of one key head are added up.

    Zero for key heads that this rank never reads. What is there already stays a term, if they `add`.
    """
    if heads.one_to_one and not add and _multiplies_in_place(call):
        call.xp.matmul(left, right, out=target.transpose(0, 2, 1, 3))
        return
    rows = call.workspace.get(name, (*left.shape[:-1], right.shape[-1]), target.dtype)
    call.xp.matmul(left, right, out=rows)
    if heads.one_to_one and not add:
        target[...] = rows.transpose(0, 2, 1, 3)
        return
    if heads.one_to_one:
        target += rows.transpose(0, 2, 1, 3)
        return
    if not add:
        target[...] = 0
    for run, head in enumerate(heads.key_heads):
        target[:, :, head] += rows[:, run]


def expect_heads(inputs: Specs, attrs: Attrs) -> TensorSpec:
    """The output spec of attention over these operands.

    Raises:
        InputError: they do not compose.
    """
    if is_packed(len(inputs)):
        qkv = inputs[0]
        composes = len(qkv.shape) == 5 and qkv.shape[3] > 2 and qkv.dtype.is_float
        expect(composes, "attention needs packed heads", got=shapes(inputs), expected="qkv[b, s, g, queries + 2, d]")
        b, s, g, wide, d = qkv.shape
        h, t = g * (wide - 2), s
        expect(not has_sinks(attrs), "packed heads have no sinks", got=dict(attrs), expected="q, k, v, sinks")
    else:
        q, k, v = inputs[:3]
        expected = "q[b, s, h, d], k[b, t, g, d], v[b, t, g, e] of one dtype, h = g * group; s = t if causal"
        composes = len(q.shape) == len(k.shape) == len(v.shape) == 4 and q.dtype == k.dtype == v.dtype
        composes = composes and k.shape[:3] == v.shape[:3] and (q.shape[0], q.shape[3]) == (k.shape[0], k.shape[3])
        expect(composes, "attention shapes do not compose", got=shapes(inputs), expected=expected)
        (b, s, h, _), (_, t, g, d) = q.shape, v.shape
        fits = h == g * int_attr(attrs, "group") and (s == t or not int_attr(attrs, "causal"))
        expect(fits, "attention shapes do not compose", got=(shapes(inputs), dict(attrs)), expected=expected)
    if has_sinks(attrs):
        wanted = TensorSpec((h,), inputs[0].dtype)
        fits = len(inputs) == 4 and inputs[3] == wanted
        expect(fits, "attention has other sinks", got=shapes(inputs), expected=f"q, k, v, sinks{(h,)}")
    scoring_of(attrs, d)
    if is_masked(len(inputs), attrs):
        visible = inputs[-1]
        fits = visible.shape == (b, t) and not visible.dtype.is_float
        expect(fits, "attention hides keys by an integer per key", got=shapes(inputs), expected=f"visible{(b, t)}")
    return TensorSpec((b, s, h, d), inputs[0].dtype)


def lse_of(out: TensorSpec) -> TensorSpec:
    """[b, s, h, d] -> [b, h, s], never in half precision."""
    b, s, h, _ = out.shape
    return TensorSpec((b, h, s), out.dtype.wide)


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """One legal split of attention: of the operands, of a tensor [b, s, h, d], of one [b, h, s], and of gradients."""

    operands: tuple[Sbp, ...]
    rows: Sbp
    statistics: Sbp
    gradients: tuple[Sbp, ...]


def head_splits(operands: Specs, attrs: Attrs, parts: int) -> list[HeadSplit]:
    """Batch, heads (with their key heads, or with all of these), queries. Each key head is to stay with its queries."""
    if has_sinks(attrs):
        return _with_sinks(head_splits(operands[:3], {**attrs, "sinks": 0}, parts))
    mask: tuple[Sbp, ...] = (B,) if is_masked(len(operands), attrs) else ()
    batch, head, query = Split(0), Split(2), Split(1)
    if is_packed(len(operands)):
        g, r = operands[0].shape[2], operands[0].shape[3] - 2
        found = [HeadSplit((batch,) * len(operands), batch, batch, (batch,))]
        if r == 1 or g % parts == 0:
            found.append(HeadSplit((head, *mask), head, Split(1), (head,)))
        return found
    h, g, group = operands[0].shape[2], operands[1].shape[2], int_attr(attrs, "group")
    found = [HeadSplit((batch,) * len(operands), batch, batch, (batch,) * 3)]
    if h == g * group and (group == 1 or g % parts == 0):
        found.append(HeadSplit((head, head, head, *mask), head, Split(1), (head,) * 3))
    found.append(HeadSplit((head, B, B, *mask), head, Split(1), (head, P, P)))
    found.append(HeadSplit((query, B, B, *mask), query, Split(2), (query, P, P)))
    return found


def _with_sinks(splits: list[HeadSplit]) -> list[HeadSplit]:
    """The same splits where there are sinks: split by head, else whole; their gradient is a sum over rows."""
    by_head = Split(2)
    found = []
    for split in splits:
        sinks, gradient = (Split(0), Split(0)) if split.rows == by_head else (B, P)
        found.append(HeadSplit((*split.operands, sinks), split.rows, split.statistics, (*split.gradients, gradient)))
    return found


def key_split(operands: int, attrs: Attrs) -> HeadSplit:
    """Keys and values split over their positions: what is summed over them is partial."""
    key = Split(1)
    if has_sinks(attrs):
        return HeadSplit((B, key, key, B), P, B, (P, key, key, B))
    return HeadSplit((B, key, key, key)[:operands], P, B, (P, key, key))


def seen_keys(attrs: Attrs, keys: int) -> int:
    """Of so many keys, as many as stand for what a query sees; what a causal mask hides is counted too.

    Twice what causal attention sees on average where no row is longer than the window: 2 w - w^2 / t of t keys.
    """
    window = min(int_attr(attrs, "window"), keys) if attrs.get("window") else keys
    return 2 * window - window * window // keys if keys else 0


def pairs_of(operands: Specs, attrs: Attrs) -> int:
    """Pairs of queries and keys over all samples and heads; those that a causal mask hides are counted too."""
    if is_packed(len(operands)):
        b, s, g, wide, _ = operands[0].shape
        return b * g * (wide - 2) * s * seen_keys(attrs, s)
    b, s, h, _ = operands[0].shape
    return b * h * s * seen_keys(attrs, operands[1].shape[1])


def head_widths(operands: Specs) -> tuple[int, int]:
    """Elements of a key, and of a value, of one head."""
    width = operands[0].shape[-1]
    return (width, width) if is_packed(len(operands)) else (width, operands[2].shape[-1])


def separate_examples() -> tuple[Example, ...]:
    """Separate operands: grouped and not, causal and not, with and without a mask."""
    even, uneven = TensorSpec((4, 4, 4, 2)), TensorSpec((5, 7, 5, 2))
    queries, grouped = TensorSpec((4, 5, 8, 2)), TensorSpec((4, 7, 4, 2))
    odd, two = TensorSpec((4, 4, 6, 2)), TensorSpec((4, 4, 2, 2))
    visible = TensorSpec((4, 7), DType.INT32)
    return (
        Example((even, even, even), attrs={"causal": 0, "group": 1}),
        Example((uneven, uneven, uneven), attrs={"causal": 1, "group": 1}),
        Example((queries, grouped, grouped, visible), attrs={"causal": 0, "group": 2}, ranges={3: SOME_HIDDEN}),
        Example((odd, two, two), attrs={"causal": 1, "group": 3}),
        Example((uneven, uneven, TensorSpec((5, 7, 5, 3))), attrs={"causal": 1, "group": 1, "window": 3, "scale": 0.4}),
        Example((even, even, even), attrs={"causal": 1, "group": 1, "softcap": 1.5}),
        Example(
            (queries, grouped, grouped, TensorSpec((8,))), attrs={"causal": 0, "group": 2, "sinks": 1, "softcap": 3.0}
        ),
        Example((odd, two, two, TensorSpec((6,))), attrs={"causal": 1, "group": 3, "sinks": 1, "window": 2}),
    )
