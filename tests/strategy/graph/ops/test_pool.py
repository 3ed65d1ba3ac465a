"""Pooling against its definition, window by window, with and without ties."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import TensorSpec
from tests.strategy.graph.ops.acts import whole

Array = npt.NDArray[Any]
FORMS: dict[str, tuple[tuple[int, ...], Attrs]] = {
    "overlapping": ((2, 3, 7, 6), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    "tiling": ((2, 2, 4, 6), {"kernel": (2, 3), "stride": (2, 3), "padding": (0, 0)}),
    "with a rest": ((1, 2, 5, 5), {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}),
}


def windows(image: tuple[int, ...], attrs: Attrs) -> list[tuple[tuple[int, int], tuple[slice, slice]]]:
    """Place of every window, and its pixels in the image without the frame."""
    (i, j), (down, across), (top, left) = (attrs[key] for key in ("kernel", "stride", "padding"))  # type: ignore[misc]
    p, q = (image[2] + 2 * top - i) // down + 1, (image[3] + 2 * left - j) // across + 1
    found = []
    for row, column in itertools.product(range(p), range(q)):
        up, side = row * down - top, column * across - left
        found.append(((row, column), (slice(max(up, 0), up + i), slice(max(side, 0), side + j))))
    return found


@pytest.mark.parametrize(("image", "attrs"), FORMS.values(), ids=FORMS)
def test_pooling_against_its_definition(image: tuple[int, ...], attrs: Attrs) -> None:
    x = np.random.default_rng(0).standard_normal(image)
    (largest,), (mean,) = whole("max_pool", [x], attrs), whole("avg_pool", [x], attrs)
    pixels = float(np.prod(attrs["kernel"]))
    for (row, column), (rows, columns) in windows(image, attrs):
        window = x[:, :, rows, columns]
        np.testing.assert_array_equal(largest[:, :, row, column], window.max(axis=(2, 3)))
        np.testing.assert_allclose(mean[:, :, row, column], window.sum(axis=(2, 3)) / pixels, rtol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("image", "attrs"), FORMS.values(), ids=FORMS)
def test_the_gradient_of_a_maximum_goes_to_its_first_pixel(image: tuple[int, ...], attrs: Attrs, tied: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, image).astype(np.float64) if tied else rng.standard_normal(image)
    (y,) = whole("max_pool", [x], attrs)
    dy = rng.standard_normal(y.shape)
    wanted = np.zeros(image)
    for (row, column), (rows, columns) in windows(image, attrs):
        for n, c in itertools.product(range(image[0]), range(image[1])):
            window = x[n, c, rows, columns]
            place = np.unravel_index(np.argmax(window), window.shape)
            wanted[n, c, rows, columns][place] += dy[n, c, row, column]
    np.testing.assert_allclose(whole("max_pool_grad", [x, dy], attrs)[0], wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("image", "attrs"), FORMS.values(), ids=FORMS)
def test_the_gradient_of_a_mean_is_its_adjoint(image: tuple[int, ...], attrs: Attrs) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(image)
    (y,) = whole("avg_pool", [x], attrs)
    dy = rng.standard_normal(y.shape)
    (dx,) = whole("avg_pool_grad", [dy], {**attrs, "size": image[2:]})
    np.testing.assert_allclose((dx * x).sum(), (dy * y).sum(), rtol=1e-10)


def test_what_does_not_compose_is_refused() -> None:
    attrs: Attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0)}
    for kind, operands, more in (
        ("max_pool", ((2, 3, 4),), {}),
        ("avg_pool", ((2, 3, 2, 4),), {}),
        ("max_pool_grad", ((2, 3, 5, 5), (2, 3, 4, 3)), {}),
        ("avg_pool_grad", ((2, 3, 3, 3),), {"size": (6, 5)}),
    ):
        with pytest.raises(InputError, match="expected"):
            op_definition(kind).infer([TensorSpec(shape) for shape in operands], (), {**attrs, **more})
