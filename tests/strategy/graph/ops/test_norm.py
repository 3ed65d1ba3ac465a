"""Norms against their definitions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs, Op
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import TensorSpec
from tests.strategy.graph.ops.acts import full_box, run_pieces, whole

Array = npt.NDArray[Any]


def drawn(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize("epsilon", [1e-5, 1e-2])
def test_rms_norm_against_its_definition(epsilon: float) -> None:
    x, gain = drawn((3, 4, 6), (6,))
    y, rstd = whole("rms_norm", [x, gain], {"epsilon": epsilon})
    for i, j in itertools.product(range(3), range(4)):
        root = np.sqrt((x[i, j] ** 2).mean() + epsilon)
        np.testing.assert_allclose(y[i, j], x[i, j] / root * gain, rtol=1e-12)
        np.testing.assert_allclose(rstd[i, j], 1 / root, rtol=1e-12)


def test_the_epsilon_of_a_layer_norm_counts() -> None:
    x, gain, bias = drawn((3, 6), (6,), (6,))
    y = whole("layer_norm", [x, gain, bias], {"epsilon": 0.5})[0]
    wanted = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 0.5) * gain + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_against_its_definition(groups: int) -> None:
    x, gain, bias = drawn((3, 6, 2, 4), (6,), (6,))
    y, mean, rstd = whole("group_norm", [x, gain, bias], {"groups": groups, "epsilon": 1e-3})
    each = 6 // groups
    for n, group in itertools.product(range(3), range(groups)):
        channels = slice(group * each, (group + 1) * each)
        part = x[n, channels]
        root = np.sqrt(part.var() + 1e-3)
        wanted = (part - part.mean()) / root * gain[channels, None, None] + bias[channels, None, None]
        np.testing.assert_allclose(y[n, channels], wanted, rtol=1e-10)
        np.testing.assert_allclose([mean[n, group], rstd[n, group]], [part.mean(), 1 / root], rtol=1e-12)


def test_square_deviations_and_their_count() -> None:
    x, mean = drawn((3, 4, 5), (4,))
    total, count = whole("square_deviations", [x, mean], {})
    np.testing.assert_allclose(total, ((x - mean[:, None]) ** 2).sum(axis=(0, 2)), rtol=1e-12)
    assert count == 15


def test_batch_norm_by_given_statistics() -> None:
    x, mean, variance, gain, bias = drawn((3, 4, 5), (4,), (4,), (4,), (4,))
    variance = variance**2
    (y,) = whole("batch_norm", [x, mean, variance, gain, bias], {"epsilon": 1e-3, "count": 0})
    wanted = (x - mean[:, None]) / np.sqrt(variance + 1e-3)[:, None] * gain[:, None] + bias[:, None]
    np.testing.assert_allclose(y, wanted, rtol=1e-12)


def test_the_gradient_of_batch_norm_is_that_through_its_statistics() -> None:
    """With mean and variance as functions of x, against central differences."""
    x, gain, bias, dy = drawn((3, 2, 4), (2,), (2,), (3, 2, 4))

    def y_of(x: Array) -> Array:
        mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
        return whole("batch_norm", [x, mean, variance, gain, bias], {"epsilon": 1e-5, "count": 12})[0]

    mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    dgain, dbias = whole("batch_norm_sums", [x, mean, variance, dy], {"epsilon": 1e-5})
    attrs: Attrs = {"epsilon": 1e-5, "count": 12}
    (dx,) = whole("batch_norm_grad", [x, mean, variance, gain, dgain, dbias, dy], attrs)
    wanted = np.zeros_like(x)
    for cell in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[cell] = 1e-6
        wanted[cell] = ((y_of(x + step) - y_of(x - step)) * dy).sum() / 2e-6
    np.testing.assert_allclose(dx, wanted, rtol=1e-4, atol=1e-7)


def test_running_average_moves_by_the_momentum() -> None:
    """Two micro-batches of two elements: 1, 3 and 5, 11 in one channel, 0, 0 and 0, 0 in the other."""
    attrs = {"momentum": 0.25, "count": 2}
    op = Op("op", "running_average", ("x0", "x1", "x2"), (), ("u0", "u1"), attrs)
    average, variance = np.array([4.0, 1.0]), np.array([2.0, 2.0])
    means = np.array([2.0 + 8.0, 0.0])
    moments = np.array([1.0 + 4.0 + 9.0 + 16.0, 1.0 + 1.0])
    boxes = [full_box((2,)), full_box((2,)), ()]
    mean, spread = run_pieces(op, [means, moments, np.asarray(4.0), average, variance], boxes, [])
    np.testing.assert_allclose(mean, [0.75 * 4.0 + 0.25 * 5.0, 0.75], rtol=1e-15)
    np.testing.assert_allclose(spread, [1.5 + 0.25 * np.var([1, 3, 5, 11], ddof=1), 1.5], rtol=1e-15)


def test_what_does_not_compose_is_refused() -> None:
    for kind, operands, attrs in (
        ("rms_norm", ((2, 3), (2,)), {}),
        ("group_norm", ((2, 6, 3), (6,), (6,)), {"groups": 4}),
        ("group_norm", ((2, 6, 3), (3,), (3,)), {"groups": 3}),
        ("square_deviations", ((2, 3), (2,)), {}),
        ("batch_norm", ((2, 3), (3,), (3,), (3,), (2,)), {"count": 0}),
        ("batch_norm", ((2, 3), (3,), (3,), (3,), (3,)), {"count": 3}),
        ("batch_norm_sums", ((2, 3), (3,), (3,), (3, 2)), {}),
        ("running_average", ((3,), (3,), ()), {}),
        ("second_moment", ((3,), (3,), (2,)), {}),
    ):
        with pytest.raises(InputError, match="expected"):
            op_definition(kind).infer([TensorSpec(shape) for shape in operands], (), attrs)  # type: ignore[arg-type]
