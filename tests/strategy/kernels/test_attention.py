"""Attention: never faster for more work, half of the square, and what a cache of pages adds."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.hardware.devices import DEVICES
from strategy.kernels import attention
from strategy.kernels.attention import AttentionConstants
from strategy.kernels.calibration import KernelKind, shipped
from strategy.kernels.precision import Floats, KernelPrecision
from tests.strategy.kernels.support import drawn, grows


def seconds(name: str, *dims: float | Floats, causal: bool = True, cached: bool = True) -> Floats:
    sheet = DEVICES[name]
    constants = shipped().constants(KernelKind.ATTENTION, KernelPrecision.BF16, sheet)
    assert isinstance(constants, AttentionConstants)
    sizes = [np.asarray(dim, dtype=float) for dim in dims]
    return attention.seconds(sheet, constants, *sizes, causal=causal, cached=cached)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["A100-80", "H100", "B200", "L40S"])
def test_no_attention_is_faster_for_being_larger(name: str, causal: bool) -> None:
    sizes = drawn(5, (1, 256), (1, 32_768), (1, 128), (1, 64), (16, 512))
    for at in range(5):
        assert grows(lambda *dims: seconds(name, *dims, causal=causal), sizes, at, seed=at)


def test_a_mask_hides_half_of_a_long_sequence() -> None:
    half, whole = (seconds("H100", 1.0, 65536.0, 32.0, 8.0, 128.0, causal=causal) for causal in (True, False))
    assert whole / half == pytest.approx(2, rel=0.02)


def test_writing_into_a_cache_takes_time_of_its_own() -> None:
    with_cache, without = (seconds("H100", 64.0, 256.0, 4.0, 4.0, 128.0, cached=cached) for cached in (True, False))
    assert with_cache > 1.2 * without


def test_one_long_head_keeps_one_multiprocessor_busy_and_the_others_idle() -> None:
    """The row of tiles of the last queries bounds the kernel: eight heads take as long as one."""
    one, eight = (seconds("A100-80", 1.0, 512.0, heads, 1.0, 128.0, cached=False) for heads in (1.0, 8.0))
    assert eight < 1.1 * one
