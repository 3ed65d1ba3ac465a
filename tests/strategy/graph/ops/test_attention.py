"""Attention against its definition, row by row; packed against separate; and its blocks against the whole."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.op_validation.signatures import try_listed
from executor.op_validation.subject import subjects_of
from executor.runtime.kernels.numpy import NumpyKernels
from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import TensorSpec
from tests.strategy.graph.ops.acts import whole

Array = npt.NDArray[Any]


def by_rows(q: Array, k: Array, v: Array, *, causal: bool, visible: Array | None = None) -> tuple[Array, Array]:
    (b, s, h, d), (_, t, g, _) = q.shape, k.shape
    out, lse = np.zeros_like(q), np.zeros((b, h, s))
    for i, row, head in itertools.product(range(b), range(s), range(h)):
        seen = [j for j in range(t) if (not causal or j <= row) and (visible is None or visible[i, j])]
        key_head = head // (h // g)
        scores = [float(q[i, row, head] @ k[i, j, key_head]) / math.sqrt(d) for j in seen]
        total = sum(math.exp(score) for score in scores)
        lse[i, head, row] = math.log(total)
        out[i, row, head] = sum(
            math.exp(score) / total * v[i, j, key_head] for score, j in zip(scores, seen, strict=True)
        )
    return out, lse


def operands(*, group: int, s: int, t: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(group + s)
    return (
        rng.standard_normal((2, s, 2 * group, 4)),
        rng.standard_normal((2, t, 2, 4)),
        rng.standard_normal((2, t, 2, 4)),
    )


@pytest.mark.parametrize(("group", "causal"), [(1, 0), (1, 1), (3, 0), (2, 1)])
def test_attention_against_its_definition(group: int, causal: int) -> None:
    q, k, v = operands(group=group, s=5, t=5 if causal else 6)
    out, lse = whole("attention", [q, k, v], {"causal": causal, "group": group})
    wanted = by_rows(q, k, v, causal=bool(causal))
    np.testing.assert_allclose(out, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(lse, wanted[1], rtol=1e-12)


def scored(q: Array, k: Array, v: Array, *, window: int, scale: float, cap: float, sinks: Array | None) -> Array:
    """Causal attention by windows, bounded scores and sinks, row by row; values may be of another width."""
    (b, s, h, _), g = q.shape, k.shape[2]
    out = np.zeros((b, s, h, v.shape[3]))
    for i, row, head in itertools.product(range(b), range(s), range(h)):
        seen = range(max(0, row - window + 1) if window else 0, row + 1)
        products = [scale * float(q[i, row, head] @ k[i, j, head // (h // g)]) for j in seen]
        weights = [math.exp(cap * math.tanh(one / cap) if cap else one) for one in products]
        total = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
        for weight, j in zip(weights, seen, strict=True):
            out[i, row, head] += weight / total * v[i, j, head // (h // g)]
    return out


SINKS = np.array([0.3, -1.0, 2.0, 0.5])
SCORED: list[tuple[Attrs, Array | None]] = [
    ({"window": 3}, None),
    ({"window": 1}, None),
    ({"window": 9}, None),
    ({"scale": 0.7}, None),
    ({"softcap": 1.5}, None),
    ({"sinks": 1}, SINKS),
    ({"window": 2, "scale": 0.3, "softcap": 2.0, "sinks": 1}, SINKS),
]


@pytest.mark.parametrize(("attrs", "sinks"), SCORED)
def test_windows_bounds_and_sinks_against_their_definition(attrs: Attrs, sinks: Array | None) -> None:
    q, k, _ = operands(group=2, s=5, t=5)
    v = np.random.default_rng(3).standard_normal((2, 5, 2, 3))
    more = [] if sinks is None else [sinks]
    out, _ = whole("attention", [q, k, v, *more], {"causal": 1, "group": 2, **attrs})
    figures = {"window": int(attrs.get("window", 0)), "cap": float(attrs.get("softcap", 0))}  # type: ignore[arg-type]
    wanted = scored(q, k, v, scale=float(attrs.get("scale", 0.5)), sinks=sinks, **figures)  # type: ignore[arg-type]
    np.testing.assert_allclose(out, wanted, rtol=1e-12)


@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize(("attrs", "sinks"), SCORED)
def test_blocks_make_up_attention_of_windows_and_sinks(chunks: int, attrs: Attrs, sinks: Array | None) -> None:
    q, k, v = operands(group=2, s=7, t=7)
    more = [] if sinks is None else [sinks]
    wanted = whole("attention", [q, k, v, *more], {"causal": 1, "group": 2, **attrs})
    dout = np.random.default_rng(1).standard_normal(q.shape)
    gradients = whole("attention_grad", [q, k, v, *more, *wanted, dout], {"causal": 1, "group": 2, **attrs})
    found: list[Array] = []
    totals = [np.zeros_like(gradient) for gradient in gradients]
    for shift in range(chunks):
        block = {"rows": 7, "keys": 7, "chunks": chunks, "shift": shift, "causal": 1, "group": 2}
        block |= {key: value for key, value in attrs.items() if key != "sinks" or shift == 0}
        first = more if shift == 0 else []
        found = whole("attention_block", [q, k, v, *first, *found], block)
        parts = whole("attention_block_grad", [q, k, v, *first, *wanted, dout], block)
        for total, part in zip(totals, parts, strict=False):
            total += part
    for one, other in zip([*found, *totals], [*wanted, *gradients], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_blocks_before_a_window_are_no_work() -> None:
    spec = TensorSpec((1, 12, 1, 4))
    attrs = {"rows": 12, "keys": 12, "chunks": 4, "causal": 1, "group": 1, "window": 4}
    flop = [op_definition("attention_block").flop([spec] * 3, (), {**attrs, "shift": shift}) for shift in range(4)]
    assert flop[0] == 4 * 3 * 3 * 4 * 4, "every chunk sees itself"
    assert flop[3] == 3 * 3 * 3 * 4 * 4, "three chunks see the one before them"
    assert flop[1] == flop[2] == 0, "what is further away lies before the window"


def test_a_window_costs_what_it_sees() -> None:
    spec = TensorSpec((1, 64, 1, 4))

    def flop(window: int) -> int:
        attrs = {"causal": 1, "group": 1, **({"window": window} if window else {})}
        return op_definition("attention").flop([spec] * 3, (), attrs)

    assert flop(64) == flop(0) == flop(100)
    assert flop(16) == flop(0) * (2 * 16 - 16 * 16 // 64) // 64
    assert flop(1) < flop(16) < flop(64)


def test_hidden_keys_do_not_matter() -> None:
    q, k, v = operands(group=2, s=4, t=6)
    visible = np.array([[1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1]], np.int32)
    attrs = {"causal": 0, "group": 2}
    out, lse = whole("attention", [q, k, v, visible], attrs)
    wanted = by_rows(q, k, v, causal=False, visible=visible)
    np.testing.assert_allclose(out, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(lse, wanted[1], rtol=1e-12)
    changed = np.where(visible[:, :, None, None] == 0, 1e3, k)
    np.testing.assert_array_equal(whole("attention", [q, changed, v, visible], attrs)[0], out)


@pytest.mark.parametrize(("group", "masked"), [(1, False), (3, False), (2, True)])
def test_packed_heads_are_separate_heads(group: int, masked: bool) -> None:
    q, k, v = operands(group=group, s=5, t=5)
    mask = [np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)] if masked else []
    grouped = q.reshape(2, 5, 2, group, 4)
    qkv = np.concatenate([grouped, k[:, :, :, None], v[:, :, :, None]], axis=3)
    attrs = {"causal": 1, "group": group}
    out, lse = whole("attention", [q, k, v, *mask], attrs)
    packed = whole("attention", [qkv, *mask], attrs)
    np.testing.assert_allclose(packed[0], out, rtol=1e-12)
    dout = np.random.default_rng(9).standard_normal(out.shape)
    dq, dk, dv = whole("attention_grad", [q, k, v, *mask, out, lse, dout], attrs)
    (dqkv,) = whole("attention_grad", [qkv, *mask, out, lse, dout], attrs)
    np.testing.assert_allclose(dqkv[:, :, :, :group].reshape(q.shape), dq, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dqkv[:, :, :, group], dk, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dqkv[:, :, :, group + 1], dv, rtol=1e-9, atol=1e-12)


def blocks(operands: list[Array], *, chunks: int, causal: int, group: int) -> tuple[list[Attrs], list[Array]]:
    """The attributes of every block, and the rows after the last."""
    found: list[Attrs] = []
    rows: list[Array] = []
    for shift in range(chunks):
        sizes = {"rows": operands[0].shape[1], "keys": operands[1].shape[1]}
        found.append({"causal": causal, "group": group, "chunks": chunks, "shift": shift, **sizes})
        rows = list(whole("attention_block", [*operands, *rows], found[-1]))
    return found, rows


@pytest.mark.parametrize(("chunks", "causal", "masked"), [(2, 1, False), (3, 1, True), (3, 0, True), (7, 1, False)])
def test_blocks_make_up_attention(chunks: int, causal: int, masked: bool) -> None:
    """Its rows and gradients; seven rows, so that the chunks are uneven; a chunk of keys may be hidden altogether."""
    q, k, v = operands(group=2, s=7, t=7)
    mask = [np.array([[1, 1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 1, 0, 1]], np.int32)] if masked else []
    attrs: Attrs = {"causal": causal, "group": 2}
    out, lse = whole("attention", [q, k, v, *mask], attrs)
    each, rows = blocks([q, k, v, *mask], chunks=chunks, causal=causal, group=2)
    np.testing.assert_allclose(rows[0], out, rtol=1e-12)
    np.testing.assert_allclose(rows[1], lse, rtol=1e-12)
    dout = np.random.default_rng(9).standard_normal(out.shape)
    inputs = [q, k, v, *mask, out, lse, dout]
    parts = zip(*(whole("attention_block_grad", inputs, block) for block in each), strict=True)
    for found, wanted in zip(map(sum, parts), whole("attention_grad", inputs, attrs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["attention_block", "attention_block_grad"])
def test_a_ring_is_the_first_axis_that_cuts_a_sequence(kind: str) -> None:
    """All signatures over two axes, either of which may be the ring."""
    subject = subjects_of(kind)[0]
    found = list(try_listed(subject, NumpyKernels(), meshes=((2, 2),)))
    assert [str(verdict) for verdict in found if verdict.problem] == []
    assert any("[B, S(1)], [B, S(1)]" in str(verdict) for verdict in found)


def test_blocks_of_the_future_are_no_work() -> None:
    """Of 3 x 3 pairs of chunks, a causal row of chunks sees itself and those before: 6."""
    specs = [TensorSpec(shape) for shape in ((2, 6, 4, 5), (2, 6, 2, 5), (2, 6, 2, 5))]
    ring = {"group": 2, "rows": 6, "keys": 6, "chunks": 3}
    for causal, pairs in ((0, (3, 3, 3)), (1, (3, 1, 2))):
        for shift, count in enumerate(pairs):
            attrs: Attrs = {**ring, "causal": causal, "shift": shift}
            outputs = op_definition("attention_block").infer(specs, (), attrs)
            flop = op_definition("attention_block").flop(specs, outputs, attrs)
            assert flop == 2 * count * (2 * 2 * 4 * 2 * 2 * 5)
    piece = [TensorSpec((2, 2, heads, 5)) for heads in (4, 2, 2)]
    assert (
        op_definition("attention_block").flop(piece, piece[:1], {**ring, "causal": 1, "shift": 1})
        == 2 * 2 * 2 * 4 * 4 * 5
    )


def test_rotary_turns_pairs_and_keeps_distances() -> None:
    """Products of turned queries and keys depend on the distance of their positions alone."""
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal(4), rng.standard_normal(4)
    attrs = {"base": 100.0, "reverse": 0}
    at = [whole("rotary", [np.tile(x, (1, 8, 1, 1))], attrs)[0][0, :, 0] for x in (q, k)]
    products = at[0] @ at[1].T
    for offset in range(-7, 8):
        np.testing.assert_allclose(np.diff(np.diagonal(products, offset)), 0, atol=1e-12)
    np.testing.assert_allclose(at[0][0], q, rtol=1e-15)
    one = complex(q[0], q[2]) * complex(math.cos(5), math.sin(5))
    np.testing.assert_allclose([at[0][5, 0], at[0][5, 2]], [one.real, one.imag], rtol=1e-12)
    two = complex(q[1], q[3]) * complex(math.cos(0.5), math.sin(0.5))
    np.testing.assert_allclose([at[0][5, 1], at[0][5, 3]], [two.real, two.imag], rtol=1e-12)


REFUSED: dict[str, tuple[str, list[tuple[int, ...]], Attrs]] = {
    "key heads that do not divide": (
        "attention",
        [(2, 3, 4, 2), (2, 3, 3, 2), (2, 3, 3, 2)],
        {"causal": 0, "group": 1},
    ),
    "another group": ("attention", [(2, 3, 4, 2), (2, 3, 2, 2), (2, 3, 2, 2)], {"causal": 0, "group": 4}),
    "causal over other keys": ("attention", [(2, 3, 2, 2), (2, 4, 2, 2), (2, 4, 2, 2)], {"causal": 1, "group": 1}),
    "values unlike keys": ("attention", [(2, 3, 2, 2), (2, 3, 2, 2), (2, 4, 2, 2)], {"causal": 0, "group": 1}),
    "a mask of floats": ("attention", [(2, 3, 3, 3, 2), (2, 3)], {"causal": 0}),
    "a chunk without rows": (
        "attention_block",
        [(2, 3, 2, 2)] * 3,
        {"causal": 0, "group": 1, "rows": 3, "keys": 3, "chunks": 4, "shift": 0},
    ),
    "a block round the ring": (
        "attention_block",
        [(2, 3, 2, 2)] * 3,
        {"causal": 0, "group": 1, "rows": 3, "keys": 3, "chunks": 2, "shift": 2},
    ),
    "rows of another block": (
        "attention_block",
        [(2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2)],
        {"causal": 0, "group": 1, "rows": 3, "keys": 3, "chunks": 2, "shift": 1},
    ),
    "a gradient of another shape": (
        "attention_block_grad",
        [(2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2, 2), (2, 2, 3), (2, 3, 2, 3)],
        {"causal": 0, "group": 1, "rows": 3, "keys": 3, "chunks": 2, "shift": 1},
    ),
    "nothing to rotate": ("copy", [(2,)], {"shift": 0, "chunks": 2}),
    "a rotation round the ring": ("copy", [(2, 3)], {"shift": 2, "chunks": 2}),
    "odd heads": ("rotary", [(2, 3, 2, 3)], {"base": 1e4, "reverse": 0}),
}


@pytest.mark.parametrize(("kind", "operands", "attrs"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_compose_is_refused(kind: str, operands: list[tuple[int, ...]], attrs: Attrs) -> None:
    with pytest.raises(InputError, match="expected"):
        op_definition(kind).infer([TensorSpec(shape) for shape in operands], (), attrs)


def test_flop_counts_the_products() -> None:
    """Scores and mixing forward; scores again, dv, dp, dk and dq backward."""
    q, k, top = ((2, 3, 4, 5), (2, 7, 2, 5), (2, 4, 3))
    product = 2 * 2 * 4 * 3 * 7 * 5
    for kind, operands, products in (
        ("attention", (q, k, k), 2),
        ("attention_grad", (q, k, k, q, top, q), 5),
    ):
        specs = [TensorSpec(shape) for shape in operands]
        attrs: Attrs = {"causal": 0, "group": 2}
        outputs = op_definition(kind).infer(specs, (), attrs)
        assert op_definition(kind).flop(specs, outputs, attrs) == products * product
