"""One tiny request, whose layers are priced once for all tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.bench.baselines import LayerPricing
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.models import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.request import Request
from strategy.space.short_model import shortened

MODEL = GptConfig(layers=8, width=1024, heads=4, sequence=512, vocabulary=1024)


@pytest.fixture(scope="session")
def ample() -> LayerPricing:
    """Eight devices, and memory for anything."""
    cluster = replace(find_cluster("dgx-a100:1"), devices_per_node=4)
    training = Training(global_batch=4, precision=Precision.BF16)
    request = Request("tiny", MODEL, training, CostModel(cluster, {}), cluster.device.memory_bytes)
    short = shortened(MODEL)
    assert short is not None
    return LayerPricing(request, short)


def limited(pricing: LayerPricing, limit_bytes: int) -> LayerPricing:
    """The same with less memory; what is priced is known to both."""
    return replace(pricing, request=replace(pricing.request, memory_limit_bytes=limit_bytes))
