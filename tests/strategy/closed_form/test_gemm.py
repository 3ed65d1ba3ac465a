"""Products: quantisation, and what a small product costs."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.closed_form.gemm import EffectiveFlops, product

SHEET = {"multiprocessors": np.array([108.0]), "peak": np.array([312e12]), "bandwidth": np.array([2039e9])}


def cost(m: float, n: float, k: float, count: float = 1) -> EffectiveFlops:
    arrays = (np.array([float(value)]) for value in (m, n, k, count))
    return product(*arrays, **SHEET, nbytes=np.array([2.0]))


def test_large_products_lose_little_to_tiles_and_waves() -> None:
    made = cost(8192, 8192, 8192)
    assert made.ideal[0] == 2 * 8192**3
    assert 1 <= made.quantised[0] / made.ideal[0] < 1.05


def test_a_wave_that_is_just_begun_costs_a_whole_one() -> None:
    """108 multiprocessors, tiles of 256 x 128: 108 tiles are one wave, 109 are two."""
    one, two = cost(256, 128 * 108, 8192), cost(256, 128 * 109, 8192)
    assert two.quantised[0] / one.quantised[0] > 1.3 * two.ideal[0] / one.ideal[0]


def test_a_thin_product_takes_as_long_as_its_weights_take_to_read() -> None:
    made = cost(1, 8192, 8192)
    assert made.ideal[0] > 20 * 2 * 8192**2


@pytest.mark.parametrize(("dim", "odd", "ragged"), [(8192, False, False), (8200, True, False), (8201, True, True)])
def test_dims_that_do_not_fit_the_tensor_cores_are_noted(dim: int, odd: bool, ragged: bool) -> None:
    made = cost(8192, dim, 8192)
    assert (made.odd[0] > 0, made.ragged[0] > 0) == (odd, ragged)


def test_an_empty_product_costs_nothing() -> None:
    made = cost(8192, 0, 8192)
    assert made.ideal[0] == made.quantised[0] == made.shallow[0] == 0
