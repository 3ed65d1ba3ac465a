"""Convolution against its definition, pixel by pixel, whatever number of images is taken together."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops import conv, op_definition
from strategy.sbp.tensor import TensorSpec
from tests.strategy.graph.ops.acts import whole

Array = npt.NDArray[Any]
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Attrs]] = {
    "padded": ((2, 3, 5, 6), (4, 3, 3, 3), {"stride": (1, 1), "padding": (1, 1), "groups": 1}),
    "strided": ((3, 2, 7, 8), (3, 2, 3, 2), {"stride": (2, 3), "padding": (0, 1), "groups": 1}),
    "pointwise": ((2, 3, 4, 4), (5, 3, 1, 1), {"stride": (1, 1), "padding": (0, 0), "groups": 1}),
    "grouped": ((2, 6, 5, 5), (4, 3, 3, 3), {"stride": (2, 2), "padding": (1, 1), "groups": 2}),
    "depthwise": ((2, 3, 5, 5), (6, 1, 3, 3), {"stride": (1, 1), "padding": (1, 1), "groups": 3}),
    "one row": ((2, 3, 5, 5), (4, 3, 1, 5), {"stride": (1, 1), "padding": (0, 2), "groups": 1}),
}


def by_pixels(x: Array, filters: Array, attrs: Attrs) -> Array:
    (down, across), (top, left), groups = attrs["stride"], attrs["padding"], attrs["groups"]  # type: ignore[misc]
    frame = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    o, each, i, j = filters.shape
    p, q = (frame.shape[2] - i) // down + 1, (frame.shape[3] - j) // across + 1
    y = np.zeros((x.shape[0], o, p, q))
    for n, out, row, column in itertools.product(range(x.shape[0]), range(o), range(p), range(q)):
        first = out // (o // groups) * each
        window = frame[n, first : first + each, row * down : row * down + i, column * across : column * across + j]
        y[n, out, row, column] = (window * filters[out]).sum()
    return y


@pytest.mark.parametrize("columns", [1, 1 << 20])
@pytest.mark.parametrize(("image", "filters", "attrs"), FORMS.values(), ids=FORMS)
def test_convolution_against_its_definition(
    image: tuple[int, ...], filters: tuple[int, ...], attrs: Attrs, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "_COLUMNS", columns)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(image), rng.standard_normal(filters)
    (y,) = whole("conv2d", [x, w], attrs)
    np.testing.assert_allclose(y, by_pixels(x, w, attrs), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 1 << 20])
@pytest.mark.parametrize(("image", "filters", "attrs"), FORMS.values(), ids=FORMS)
def test_gradients_are_the_adjoints(
    image: tuple[int, ...], filters: tuple[int, ...], attrs: Attrs, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dy . conv(x, w) = dx . x = dw . w, because convolution is linear in both."""
    monkeypatch.setattr(conv, "_COLUMNS", columns)
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(image), rng.standard_normal(filters)
    y = by_pixels(x, w, attrs)
    dy = rng.standard_normal(y.shape)
    (dx,) = whole("conv2d_dx", [w, dy], {**attrs, "size": image[2:]})
    (dw,) = whole("conv2d_dw", [x, dy], {**attrs, "kernel": filters[2:]})
    other_x, other_w = rng.standard_normal(image), rng.standard_normal(filters)
    np.testing.assert_allclose((dx * other_x).sum(), (dy * by_pixels(other_x, w, attrs)).sum(), rtol=1e-9)
    np.testing.assert_allclose((dw * other_w).sum(), (dy * by_pixels(x, other_w, attrs)).sum(), rtol=1e-9)


@pytest.mark.parametrize(("image", "filters", "attrs"), FORMS.values(), ids=FORMS)
def test_flop_is_two_per_multiplication(image: tuple[int, ...], filters: tuple[int, ...], attrs: Attrs) -> None:
    x, w = TensorSpec(image), TensorSpec(filters)
    (y,) = op_definition("conv2d").infer((x, w), (), attrs)
    wanted = 2 * y.size * filters[1] * filters[2] * filters[3]
    assert op_definition("conv2d").flop((x, w), (y,), attrs) == wanted
    assert op_definition("conv2d_dx").flop((w, y), (x,), attrs) == wanted
    assert op_definition("conv2d_dw").flop((x, y), (w,), attrs) == wanted


SQUARE: Attrs = {"stride": (1, 1), "padding": (0, 0), "groups": 1}
REFUSED: dict[str, tuple[str, tuple[tuple[int, ...], ...], Attrs]] = {
    "other channels": ("conv2d", ((2, 3, 5, 5), (4, 2, 3, 3)), SQUARE),
    "groups that do not divide": ("conv2d", ((2, 4, 5, 5), (3, 2, 3, 3)), {**SQUARE, "groups": 2}),
    "a vector": ("conv2d", ((2, 3), (4, 3, 1, 1)), SQUARE),
    "a kernel larger than the image": ("conv2d", ((2, 3, 2, 5), (4, 3, 3, 3)), SQUARE),
    "no stride": ("conv2d", ((2, 3, 5, 5), (4, 3, 3, 3)), {**SQUARE, "stride": (0, 1)}),
    "more padding than kernel": ("conv2d", ((2, 3, 5, 5), (4, 3, 1, 1)), {**SQUARE, "padding": (1, 0)}),
    "dx of another size": ("conv2d_dx", ((4, 3, 3, 3), (2, 4, 3, 3)), {**SQUARE, "size": (6, 5)}),
    "dw of another kernel": ("conv2d_dw", ((2, 3, 5, 5), (2, 4, 3, 3)), {**SQUARE, "kernel": (2, 3)}),
}


@pytest.mark.parametrize(("kind", "operands", "attrs"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_compose_is_refused(kind: str, operands: tuple[tuple[int, ...], ...], attrs: Attrs) -> None:
    with pytest.raises(InputError, match="expected"):
        op_definition(kind).infer([TensorSpec(shape) for shape in operands], (), attrs)
