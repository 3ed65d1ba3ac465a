"""Patterns: attention, rotary positions, norms and GELUs that were written out, found among expressions.

attention  softmax(q k^T factor + mask) v, mask constant      q, k, v [b, h, s, d], heads of keys repeated or not
rotary     x C + (-x2, x1) S, C and S constant tables         x1, x2 the halves of every head (arXiv:2104.09864)
rms norm   x rsqrt(mean(x^2) + epsilon) gain                  over the last dim (arXiv:1910.07467)
gelu       x (1 + erf(x / sqrt 2)) / 2                        (arXiv:1606.08415)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strategy.base.errors import InputError
from strategy.models.imported.expression import Expression, Expressions
from strategy.models.imported.foreign import Array

HIDDEN = -1e4
"""Added to a score, anything below hides it."""
_HEADS_LAST = (0, 2, 1, 3)
"""[b, h, s, d] <-> [b, s, h, d]."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees: all, or those before it, or of these the nearest."""

    causal: bool = False
    window: int = 0


def mask_of(table: Array, queries: int, keys: int) -> Mask:
    """What a constant mask says: booleans that are true, or terms that are zero, where a key is seen.

    Raises:
        InputError: it is neither open, nor causal, nor a causal window; or differs between samples or heads.
    """
    seen = table if table.dtype == np.bool_ else table > HIDDEN
    if table.dtype != np.bool_ and np.any(table[seen] != 0):
        raise InputError("a mask that adds to scores", expected="0 where a key is seen, -inf elsewhere")
    while seen.ndim > 2:
        if seen.shape[0] > 1 and np.any(seen[1:] != seen[:1]):
            raise InputError("a mask that differs between samples or heads", got=table.shape)
        seen = seen[0]
    seen = np.broadcast_to(seen, (queries, keys))
    if seen.all():
        return Mask()
    distance = np.subtract.outer(np.arange(queries), np.arange(keys))
    if queries == keys and not np.any(seen[distance < 0]):
        if np.all(seen == (distance >= 0)):
            return Mask(causal=True)
        window = int(seen[-1].sum())
        if np.all(seen == ((distance >= 0) & (distance < window))):
            return Mask(causal=True, window=window)
    raise InputError("a mask that is neither open, nor causal, nor a causal window", got=table.shape)


def attention(make: Expressions, q: Expression, k: Expression, v: Expression, mask: Mask, scale: float) -> Expression:
    """Attention of q[b, h, s, d], k[b, g, t, d], v[b, g, t, e] -> [b, h, s, e]; repeated heads of keys are read once.

    Raises:
        InputError: operands are not of four dims, or do not compose.
    """
    shapes = (q.shape, k.shape, v.shape)
    if any(len(shape) != 4 for shape in shapes):
        raise InputError("attention over other dims", got=shapes, expected="[samples, heads, positions, width]")
    once_k, once_v = _once(make, k), _once(make, v)
    if once_k.shape[1] == once_v.shape[1]:
        k, v = once_k, once_v
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise InputError("the heads are no multiple of the key heads", got=shapes)
    attrs: dict[str, int | float] = {"causal": int(mask.causal), "group": q.shape[1] // k.shape[1]}
    if mask.window:
        attrs["window"] = mask.window
    if not math.isclose(scale, 1.0 / math.sqrt(q.shape[3]), rel_tol=1e-6):
        attrs["scale"] = scale
    turned = [make.transpose(one, _HEADS_LAST) for one in (q, k, v)]
    return make.transpose(make.op("attention", *turned, **attrs), _HEADS_LAST)


def _once(make: Expressions, x: Expression) -> Expression:
    """Heads [b, g, s, d] of which each was repeated some times in a row; x itself where none was."""
    if x.kind == "reshape" and x.x.kind == "expand" and len(x.x.shape) == 5:
        repeated, source = x.x.shape, x.x.x
        b, g, r, s, d = repeated
        if x.shape == (b, g * r, s, d) and source.shape in ((b, g, 1, s, d),):
            return make.reshape(source, (b, g, s, d))
    return x


def attention_of(make: Expressions, weights: Expression, v: Expression) -> Expression | None:
    """The attention that a product of soft-max weights and values is; None where it is another product."""
    if weights.kind != "softmax" or len(weights.shape) != 4 or len(v.shape) != 4:
        return None
    scores, table = weights.x, None
    if scores.kind == "plus_table":
        scores, table = scores.x, scores.table
    scores, factor = _unscaled(scores)
    if table is None and scores.kind == "plus_table":
        return None
    if scores.kind != "batch_matmul" or scores.attrs["transpose_a"]:
        return None
    q, k = scores.inputs
    if not scores.attrs["transpose_b"]:
        k = make.transpose(k, (0, 1, 3, 2))
    (q, of_q), (k, of_k) = _unscaled(q), _unscaled(k)
    mask = Mask() if table is None else mask_of(table, q.shape[2], k.shape[2])
    return attention(make, q, k, v, mask, factor * of_q * of_k)


def _unscaled(x: Expression) -> tuple[Expression, float]:
    return (x.x, float(x.attrs["factor"])) if x.kind == "scale" else (x, 1.0)  # type: ignore[arg-type]


def rotary_of(make: Expressions, a: Expression, b: Expression) -> Expression | None:
    """The rotary positions that a sum is; None where it is another sum."""
    if a.kind != "times_table" or b.kind != "times_table" or a.table is None or b.table is None:
        return None
    straight, across = (a, b) if _swapped_halves(b.x) is a.x else (b, a)
    x = straight.x
    if _swapped_halves(across.x) is not x or len(x.shape) != 4 or straight.table is None or across.table is None:
        return None
    tables = [_by_position(table, len(x.shape)) for table in (straight.table, across.table)]
    if tables[0][0] != tables[1][0]:
        return None
    dim, cosine, sine = tables[0][0], tables[0][1], tables[1][1]
    if dim not in (1, 2) or cosine.shape != (x.shape[dim], x.shape[3]) or sine.shape != cosine.shape:
        return None
    frequencies, scale = _frequencies(cosine, sine)
    turned = make.transpose(x, _HEADS_LAST) if dim == 2 else x
    given = {} if scale == 1.0 else {"scale": scale}
    y = make.op("rotary", turned, base=10000.0, reverse=0, frequencies=frequencies, **given)
    return make.transpose(y, _HEADS_LAST) if dim == 2 else y


def _swapped_halves(x: Expression) -> Expression | None:
    """The heads whose halves (-x2, x1) are joined in x."""
    if x.kind != "concat" or len(x.inputs) != 2 or x.attrs["axis"] != len(x.shape) - 1 or x.inputs[0].kind != "neg":
        return None
    second, first = x.inputs[0].x, x.inputs[1]
    if first.kind != "slice" or second.kind != "slice" or first.x is not second.x:
        return None
    width, source = x.shape[-1], first.x
    begins = [one.attrs["begin"][-1] for one in (first, second)]  # type: ignore[index]
    fits = source.shape == x.shape and width % 2 == 0 and first.shape == second.shape and begins == [0, width // 2]
    return source if fits else None


def _by_position(table: Array, dims: int) -> tuple[int, Array]:
    """(the dim of positions, table[position, width]) of a table that differs along these alone; dim 0 of any other."""
    whole = table.reshape((1,) * (dims - table.ndim) + table.shape) if table.ndim <= dims else table
    for dim in range(dims - 1):
        if whole.shape[dim] > 1 and np.all(whole == whole.take([0], axis=dim)):
            whole = whole.take([0], axis=dim)
    long = [dim for dim in range(dims - 1) if whole.shape[dim] > 1]
    return (long[0], whole.reshape(-1, whole.shape[-1])) if len(long) == 1 else (0, whole.reshape(-1, whole.shape[-1]))


def _frequencies(cosine: Array, sine: Array) -> tuple[tuple[float, ...], float]:
    """Radians per position of every pair, and the scale, of tables [s, d].

    An angle at a position is known but for whole turns: each frequency is read off at position 1 and made precise at
    positions 2, 4, 8 and so on.

    Raises:
        InputError: the tables are not of angles that grow with the position.
    """
    half = cosine.shape[1] // 2
    wide = cosine.astype(np.float64) + 1j * sine.astype(np.float64)
    scale = float(np.abs(wide[0]).mean())
    if scale <= 0 or not math.isfinite(scale):
        raise InputError("positions that turn by no angle", got=scale)
    scale = 1.0 if abs(scale - 1.0) < 1e-6 else scale
    angles = np.angle(wide / scale)
    found, position = angles[min(1, len(angles) - 1)][:half].copy(), 2
    while position < len(angles):
        turns = np.round((found * position - angles[position][:half]) / (2 * math.pi))
        found = (angles[position][:half] + 2 * math.pi * turns) / position
        position *= 2
    meant = scale * np.exp(1j * np.outer(np.arange(len(angles)), np.concatenate([found, found])))
    if np.abs(meant - wide).max() > 1e-3 * scale:
        raise InputError(
            "tables that are no rotary positions", expected="cosines and sines of position times frequency"
        )
    return tuple(float(one) for one in found), scale


def rms_norm_of(make: Expressions, x: Expression, gain: Expression) -> Expression | None:
    """The RMS norm that a product with a gain is; None where it is another product."""
    if gain.kind != "parameter" or len(gain.shape) != 1 or x.kind != "mul" or gain.shape[0] != x.shape[-1]:
        return None
    for source, factor in (x.inputs, x.inputs[::-1]):
        if factor.kind != "rsqrt" or factor.x.kind not in ("shift", "reduce_mean"):
            continue
        shifted = factor.x
        epsilon = float(shifted.attrs["amount"]) if shifted.kind == "shift" else 0.0  # type: ignore[arg-type]
        mean = shifted.x if shifted.kind == "shift" else shifted
        over_last = mean.kind == "reduce_mean" and mean.attrs["axes"] == (len(source.shape) - 1,)
        if over_last and mean.attrs["keepdims"] and mean.x.kind == "square" and mean.x.x is source and epsilon > 0:
            return make.op("rms_norm", source, gain, epsilon=epsilon)
    return None


def gelu_of(make: Expressions, x: Expression, y: Expression) -> Expression | None:
    """The GELU that a product is, twice: x (1 + erf(x / sqrt 2)); None where it is another product."""
    for source, factor in ((x, y), (y, x)):
        one_more = factor.kind == "shift" and factor.attrs["amount"] == 1.0 and factor.x.kind == "erf"
        if one_more:
            inner, by = _unscaled(factor.x.x)
            plain, of_source = _unscaled(source)
            if inner is plain and math.isclose(by, math.sqrt(0.5), rel_tol=1e-6):
                return make.scale(make.op("gelu_exact", plain), 2.0 * of_source)
    return None


def silu_of(make: Expressions, x: Expression, y: Expression) -> Expression | None:
    """The SiLU that a product is, x sigmoid(x); None where it is another product."""
    for source, factor in ((x, y), (y, x)):
        if factor.kind == "sigmoid" and factor.x is source:
            return make.op("silu", source)
    return None
