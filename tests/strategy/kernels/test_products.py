"""Products: never faster for more work, and what tiles, waves, splits and bytes do."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.hardware.devices import DEVICES
from strategy.kernels import products
from strategy.kernels.calibration import KernelKind, shipped
from strategy.kernels.precision import Floats, KernelPrecision
from strategy.kernels.products import ProductConstants
from tests.strategy.kernels.support import drawn, grows

H100 = DEVICES["H100"]
PLAIN = ProductConstants(rate=0.5, memory=1.0, cache_bytes_per_s=1e15, fill_s=1e-6)


def seconds(name: str, precision: KernelPrecision, *dims: float | Floats) -> Floats:
    sheet = DEVICES[name]
    constants = shipped().constants(KernelKind.PRODUCTS, precision, sheet)
    assert isinstance(constants, ProductConstants)
    return products.seconds(sheet, precision, constants, *(np.asarray(dim, dtype=float) for dim in dims))


@pytest.mark.parametrize("precision", sorted(set(KernelPrecision) - {KernelPrecision.W4A8}))
@pytest.mark.parametrize("name", DEVICES)
def test_no_product_is_faster_for_being_larger(name: str, precision: KernelPrecision) -> None:
    sizes = drawn(7, (1, 40_000), (1, 70_000), (1, 70_000))
    for at in range(3):
        assert grows(lambda *dims: seconds(name, precision, *dims), sizes, at, seed=at)


def test_one_wave_of_tiles_costs_what_its_steps_and_its_filling_take() -> None:
    """132 tiles of 256 x 256 on 132 multiprocessors: 64 steps of 64, and one filling."""
    m, n, k = 256.0 * 132, 256.0, 4096.0
    found = products._tiles_s(H100, KernelPrecision.BF16, PLAIN, *map(np.array, (m, n, k, 1.0)))
    assert float(found) == pytest.approx(2 * m * n * k / (H100.half * 0.5) + 1e-6)


def test_one_tile_more_than_a_wave_takes_longer_by_what_the_best_tile_loses() -> None:
    whole, more = (seconds("H100", KernelPrecision.BF16, 128.0 * tiles, 4096.0, 8192.0) for tiles in (33, 34))
    assert more > 1.02 * whole


def test_few_tiles_are_split_along_k_by_cublas_alone() -> None:
    deep = {
        one: seconds("H100", one, 128.0, 128.0, 65536.0) for one in (KernelPrecision.BF16, KernelPrecision.FP8_BLOCK)
    }
    assert deep[KernelPrecision.FP8_BLOCK] > 2 * deep[KernelPrecision.BF16]


def test_few_rows_are_bound_by_the_bytes_of_the_weights() -> None:
    found = seconds("H100", KernelPrecision.BF16, 16.0, 65536.0, 16384.0)
    assert 1 < found / (65536 * 16384 * 2 / H100.memory_bytes_per_s) < 1.5


def test_large_products_in_eight_bits_are_faster_than_in_sixteen() -> None:
    sizes = drawn(3, (4096, 40_000), (4096, 60_000), (4096, 60_000))
    for name in ("H100", "H200", "B200", "GB200"):
        wide, narrow = (seconds(name, one, *sizes) for one in (KernelPrecision.BF16, KernelPrecision.FP8))
        assert (narrow < wide).all()


def test_a_precision_that_nobody_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no constants of products in w4a8"):
        seconds("B200", KernelPrecision.W4A8, 64.0, 64.0, 64.0)


def test_a_product_without_elements_takes_no_time() -> None:
    assert (seconds("H100", KernelPrecision.BF16, np.array([0.0, 5.0]), 5.0, np.array([5.0, 0.0])) == 0).all()


def test_many_products_share_the_waves_and_the_launch() -> None:
    """Tiles of 64 x 32 fill the device seven times as well; 264 tiles of 256 x 256 are two waves of 132."""
    one, seven, many = (
        float(products.seconds(H100, KernelPrecision.BF16, PLAIN, *map(np.array, (256.0, 256.0, 4096.0)), count))
        for count in (1.0, 7.0, 264.0)
    )
    assert one < seven < 5 * one
    two_waves_s = 264 * 2 * 256 * 256 * 4096 / (H100.half * 0.5) + 2e-6
    bytes_s = 264 * 2 * (2 * 256 * 4096 + 256 * 256) / H100.memory_bytes_per_s
    assert many == pytest.approx(np.hypot(two_waves_s, bytes_s), rel=0.01)


def test_operands_that_come_narrow_need_no_cast() -> None:
    sheet, eight = DEVICES["B200"], KernelPrecision.FP8
    constants = shipped().constants(KernelKind.PRODUCTS, eight, sheet)
    assert isinstance(constants, ProductConstants)
    dims = [np.array(4096.0)] * 3
    with_cast, without = (products.seconds(sheet, eight, constants, *dims, cast=cast) for cast in (True, False))
    cast_s = 4096 * 4096 * 3 / (sheet.memory_bytes_per_s * constants.casting)
    assert with_cast - without == pytest.approx(cast_s + constants.launch_s)
