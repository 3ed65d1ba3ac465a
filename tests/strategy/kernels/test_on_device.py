"""On a device: which recipe a width means, and that no kernel is faster than the least that is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.hardware.devices import DEVICES
from strategy.kernels.on_device import (
    at_width,
    attention_seconds,
    grouped_seconds,
    least_attention_seconds,
    least_grouped_seconds,
    least_product_seconds,
    precision_of,
    product_seconds,
)
from strategy.kernels.precision import KernelPrecision
from tests.strategy.kernels.support import drawn, grows

FITTED = sorted(set(KernelPrecision) - {KernelPrecision.W4A8})


@pytest.mark.parametrize(
    ("device", "width", "precision"),
    [
        ("A100-80", "single", KernelPrecision.SINGLE),
        ("A100-80", "eight", KernelPrecision.BF16),
        ("H100", "eight", KernelPrecision.FP8),
        ("H100", "mx8", KernelPrecision.FP8_BLOCK),
        ("H100", "four", KernelPrecision.FP8),
        ("B200", "mx8", KernelPrecision.FP8),
        ("B200", "row8", KernelPrecision.FP8),
        ("B200", "four", KernelPrecision.NVFP4),
    ],
)
def test_a_width_that_the_tensor_cores_lack_is_multiplied_as_the_next_wider_one(
    device: str, width: str, precision: KernelPrecision
) -> None:
    assert precision_of(DEVICES[device], width) is precision


@pytest.mark.parametrize("precision", FITTED)
@pytest.mark.parametrize("name", DEVICES)
def test_no_product_takes_less_than_the_least(name: str, precision: KernelPrecision) -> None:
    sheet = DEVICES[name]
    m, n, k, count = drawn(2, (1, 40_000), (1, 60_000), (1, 60_000), (1, 300))
    for least, seconds in (
        (least_product_seconds(sheet, precision), product_seconds(sheet, precision, m, n, k, count)),
        (least_grouped_seconds(sheet, precision), grouped_seconds(sheet, precision, m, n, k, count)),
    ):
        fixed_s, per_flop_s = least
        assert (seconds * (1 + 1e-12) >= fixed_s + per_flop_s * 2 * m * n * k * count).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", DEVICES)
def test_no_attention_takes_less_than_the_least(name: str, causal: bool) -> None:
    sheet = DEVICES[name]
    sequences, queries, keys, heads, head_dim = drawn(4, (1, 64), (1, 32_768), (1, 32_768), (1, 128), (16, 512))
    seconds = attention_seconds(sheet, sequences, queries, keys, heads, heads, head_dim, causal=causal)
    left = sequences * heads * queries * keys * (0.5 if causal else 1.0)
    least = [least_attention_seconds(sheet, float(dim)) for dim in head_dim]
    fixed_s, per_pair_s = np.array(least).T
    assert (seconds * (1 + 1e-12) >= fixed_s + per_pair_s * left).all()


@pytest.mark.parametrize("precision", FITTED)
@pytest.mark.parametrize("name", ["A100-80", "H100", "GB300", "MI300X", "TPU-v7x"])
def test_nothing_is_faster_for_being_larger(name: str, precision: KernelPrecision) -> None:
    sizes = drawn(9, (1, 40_000), (1, 60_000), (1, 60_000), (1, 300))
    for at in range(4):
        assert grows(lambda *dims: product_seconds(DEVICES[name], precision, *dims), sizes, at, seed=at)
        assert grows(lambda *dims: grouped_seconds(DEVICES[name], precision, *dims), sizes, at, seed=at)


def test_what_is_cast_elsewhere_has_no_launch_of_its_own() -> None:
    """Eight bits take less than sixteen from small products on."""
    dims = drawn(3, (512, 8192), (512, 8192), (512, 8192))
    for name in ("H100", "B200"):
        narrow, wide = (
            product_seconds(DEVICES[name], one, *dims) for one in (KernelPrecision.FP8, KernelPrecision.BF16)
        )
        assert np.median(narrow / wide) < 0.75


def test_attention_in_single_precision_has_its_peak() -> None:
    sheet = DEVICES["V100-32"]
    assert at_width(sheet, "single").half == sheet.single
    assert at_width(sheet, "half") == sheet
