"""Attention against its definition, row by row; packed against separate; and its steps against the whole."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.errors import InputError
from strategy.graph import Attrs, Op
from strategy.ops import op_definition
from strategy.tensor import TensorSpec
from tests.strategy.ops.acts import full_box, run_pieces, whole

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


@pytest.mark.parametrize("causal", [0, 1])
def test_terms_of_key_pieces_add_up_to_attention(causal: int) -> None:
    """A ring's arithmetic: the rows' maximum over pieces of the keys, then sums of terms below it."""
    q, k, v = operands(group=2, s=6, t=6)
    attrs = {"causal": causal, "group": 2}
    pieces = [(0, 2), (2, 3), (3, 6)]

    def over_pieces(kind: str, *more: Array) -> list[Array]:
        found = []
        for begin, end in pieces:
            keys = [x[:, begin:end] for x in ((k,) if kind == "attention_max" else (k, v))]
            key_box = ((0, 2), (begin, end), (0, 2), (0, 4))
            inputs = [q, *keys, *more]
            boxes = [full_box(q.shape), *(key_box for _ in keys), *(full_box(x.shape) for x in more)]
            shape = (2, 4, 6) if kind == "attention_max" else (2, 6, 4, 5)
            op = Op("op", kind, tuple(map(str, range(len(inputs)))), ("y",), attrs=attrs)
            found += run_pieces(op, inputs, boxes, [full_box(shape)])
        return found

    top = np.max(over_pieces("attention_max"), axis=0)
    terms = np.sum(over_pieces("attention_terms", top), axis=0)
    wanted, _ = by_rows(q, k, v, causal=bool(causal))
    np.testing.assert_allclose(terms[..., :-1] / terms[..., -1:], wanted, rtol=1e-12)


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
    "maxima of another shape": (
        "attention_terms",
        [(2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2, 2), (2, 3, 2)],
        {"causal": 0, "group": 1},
    ),
    "odd heads": ("rotary", [(2, 3, 2, 3)], {"base": 1e4, "reverse": 0}),
}


@pytest.mark.parametrize(("kind", "operands", "attrs"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_compose_is_refused(kind: str, operands: list[tuple[int, ...]], attrs: Attrs) -> None:
    with pytest.raises(InputError, match="expected"):
        op_definition(kind).infer([TensorSpec(shape) for shape in operands], (), attrs)


def test_flop_counts_the_products() -> None:
    """Scores and mixing forward; scores again, dv, dp, dk and dq backward."""
    q, k, top, terms = ((2, 3, 4, 5), (2, 7, 2, 5), (2, 4, 3), (2, 3, 4, 6))
    product = 2 * 2 * 4 * 3 * 7 * 5
    for kind, operands, products in (
        ("attention", (q, k, k), 2),
        ("attention_grad", (q, k, k, q, top, q), 5),
        ("attention_max", (q, k), 1),
        ("attention_terms", (q, k, k, top), 2),
        ("attention_terms_grad", (q, k, k, top, terms), 5),
    ):
        specs = [TensorSpec(shape) for shape in operands]
        attrs: Attrs = {"causal": 0, "group": 2}
        outputs = op_definition(kind).infer(specs, (), attrs)
        assert op_definition(kind).flop(specs, outputs, attrs) == products * product
