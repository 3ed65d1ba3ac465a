"""Grouped products: never faster for more work, on every device and in every precision."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.hardware.devices import DEVICES
from strategy.kernels import grouped
from strategy.kernels.calibration import KernelKind, shipped
from strategy.kernels.expert_load import busiest_rank
from strategy.kernels.grouped import ExpertLayer, GroupedConstants
from strategy.kernels.precision import Floats, KernelPrecision
from tests.strategy.kernels.support import drawn, grows


def seconds(
    name: str, precision: KernelPrecision, tokens: Floats, top_k: Floats, hidden: Floats, ffn: Floats, skew: float
) -> Floats:
    sheet = DEVICES[name]
    constants = shipped().constants(KernelKind.GROUPED, precision, sheet)
    assert isinstance(constants, GroupedConstants)
    load = busiest_rank(tokens, top_k, np.array(64.0), np.array(8.0), np.array(skew))
    layer = ExpertLayer(hidden, ffn, np.array(2.0), np.array(3.0))
    return grouped.seconds(sheet, precision, constants, layer, load, tokens * top_k)


@pytest.mark.parametrize("precision", KernelPrecision)
@pytest.mark.parametrize("name", ["A100-80", "H200", "B200", "MI355X"])
@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_no_experts_are_faster_for_more_work(name: str, precision: KernelPrecision, skew: float) -> None:
    sizes = drawn(11, (1, 20_000), (1, 8), (256, 16_384), (64, 16_384))
    for at in range(4):
        assert grows(lambda *given: seconds(name, precision, *given, skew), sizes, at, seed=at)


def test_a_skewed_load_takes_longer_than_a_balanced_one() -> None:
    sizes = [np.array(size) for size in (16384.0, 8.0, 4096.0, 2048.0)]
    balanced, skewed = (seconds("H100", KernelPrecision.BF16, *sizes, skew) for skew in (0.0, 1.2))
    assert skewed > 1.1 * balanced


def test_few_tokens_are_bound_by_the_weights_of_the_experts() -> None:
    """A hundred tokens take hardly less than a token per expert: all weights are loaded."""
    sizes = [np.array(size) for size in (8.0, 7168.0, 4096.0)]
    few, more = (seconds("H100", KernelPrecision.BF16, np.array(tokens), *sizes, 0.0) for tokens in (8.0, 80.0))
    assert more < 1.1 * few
