"""Acts block after block give what they give at once: to the last bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from strategy.graph.ops import cache_blocks, heads, op_definition
from strategy.graph.ops.base import Call, Workspace

Array = NDArray[Any]
SHAPE = (3, 5, 7)
ADAM = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
LABELS = {"ignore_index": -100, "label_smoothing": 0.1, "classes": 7}
ELEMENTWISE: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "gelu": ("x", "x", "", {}),
    "gelu_grad": ("xx", "x", "", {}),
    "silu": ("x", "x", "", {}),
    "silu_grad": ("xx", "x", "", {}),
    "tanh_grad": ("xx", "x", "", {}),
    "adam": ("x11", "", "xxx", ADAM),
    "adamw": ("x11", "", "xxx", ADAM),
    "sgd": ("x11", "", "xx", {"momentum": 0.9, "nesterov": 1, "weight_decay": 0.1}),
}
"""Kind -> forms of inputs, outputs, variables: x is the shape, s lacks the last dim, d is the last dim, 1 a scalar."""
ROWS: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "layer_norm": ("xdd", "xss", "", {}),
    "layer_norm_grad": ("xdssx", "xdd", "", {}),
    "rms_norm": ("xd", "xs", "", {}),
    "rms_norm_grad": ("xdsx", "xd", "", {}),
    "sum_exp": ("xs", "s", "", {}),
    "sum_exp_grad": ("xss", "x", "", {}),
    "cross_entropy_grad": ("xls1", "x", "", LABELS),
}


def call_of(forms: tuple[str, str, str, Mapping[str, Any]]) -> Call:
    """Random operands, the same ones every time."""
    rng = np.random.default_rng(5)
    shapes = {"x": SHAPE, "s": SHAPE[:-1], "d": SHAPE[-1:], "1": ()}

    def drawn(form: str) -> Array:
        if form == "l":
            return np.where(rng.random(SHAPE[:-1]) < 0.2, -100, rng.integers(0, SHAPE[-1], SHAPE[:-1]))
        return np.asarray(rng.uniform(0.1, 2.0, shapes[form]), np.float32)

    inputs, outputs, updates = (tuple(map(drawn, group)) for group in forms[:3])
    boxes = tuple(tuple((0, size) for size in array.shape) for array in inputs)
    return Call(np, forms[3], inputs, outputs, updates, boxes, (), Workspace(np))


def results(kind: str, forms: tuple[str, str, str, Mapping[str, Any]], block: int) -> list[Array]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache_blocks, "BLOCK_ELEMENTS", block)
        patched.setattr(cache_blocks, "LEAST_ELEMENTS", 1 if block < 1000 else 1 << 30)
        call = call_of(forms)
        for _ in range(2):  # what is kept between acts must not matter
            op_definition(kind).run(call)
    return [*call.outputs, *call.updates]


@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("block", [1, 8, 64])
def test_element_by_element_nothing_changes(kind: str, block: int) -> None:
    for found, wanted in zip(*(results(kind, ELEMENTWISE[kind], size) for size in (block, 10**6)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=3e-7)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("block", [1, 14, 40])
def test_by_rows_sums_are_those_of_all_rows(kind: str, block: int) -> None:
    for found, wanted in zip(*(results(kind, ROWS[kind], size) for size in (block, 10**6)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_an_array_that_does_not_lie_flat_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_blocks, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(cache_blocks, "BLOCK_ELEMENTS", 4)
    x, out = np.random.default_rng(0).random((6, 8)), np.zeros((8, 6))
    call = Call(np, {}, (x.T,), (out,), (), (), (), Workspace(np))
    op_definition("silu").run(call)
    np.testing.assert_allclose(out, x.T / (1 + np.exp(-x.T)))


def attended(attrs: Mapping[str, Any], separate: int, queries: int, first: int = 0) -> list[Array]:
    """Attention and its gradient over 2 samples of 9 positions, in blocks of so many queries; from query `first` on."""
    rng = np.random.default_rng(3)
    s, t = 9 - first, 9
    operands = (
        tuple(rng.standard_normal(shape) for shape in ((2, s, 4, 6), (2, t, 2, 6), (2, t, 2, 6)))
        if separate
        else (rng.standard_normal((2, t, 2, 4, 6)),)
    )
    sinks = (rng.standard_normal(4),) if attrs.get("sinks") else ()
    inputs = (*operands, *sinks)
    boxes: list[Any] = [tuple((0, size) for size in array.shape) for array in inputs]
    if separate:
        boxes[0] = ((0, 2), (first, 9), (0, 4), (0, 6))
    out, lse = np.empty((2, s, 4, 6)), np.empty((2, 4, s))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(heads, "_QUERIES", queries)
        workspace = Workspace(np)
        op_definition("attention").run(Call(np, attrs, inputs, (out, lse), (), tuple(boxes), (), workspace))
        gradients = tuple(np.full_like(array, np.nan) for array in inputs)
        more = (*inputs, out, lse, rng.standard_normal(out.shape))
        op_definition("attention_grad").run(Call(np, attrs, more, gradients, (), tuple(boxes), (), workspace))
    return [out, lse, *gradients]


@pytest.mark.parametrize("queries", [1, 2, 4])
@pytest.mark.parametrize("more", [{}, {"window": 3}, {"softcap": 2.0}, {"sinks": 1}, {"scale": 0.5, "window": 1}])
@pytest.mark.parametrize(("separate", "first"), [(0, 0), (1, 0), (1, 4)])
def test_what_a_mask_hides_is_left_out(queries: int, more: Mapping[str, Any], separate: int, first: int) -> None:
    if more.get("sinks") and not separate:
        return
    attrs = {"causal": 1, "group": 2, **more} if separate else {"causal": 1, **more}
    blocks, whole = (attended(attrs, separate, size, first) for size in (queries, 100))
    for found, wanted in zip(blocks, whole, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
