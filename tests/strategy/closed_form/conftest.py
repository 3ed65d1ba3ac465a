"""Jobs that tests price: a GPT on A100s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strategy.closed_form.job import Job, Shape
from strategy.hardware.devices import device

GPT = Shape.transformer(layers=48, hidden=8192, heads=64, ffn=32768, vocab=51200)
BASE = Job(
    shape=GPT, device=device("A100-80"), framework="megatron", precision="half", gpus=64, gpus_per_node=8,
    nic_bytes_per_s=25e9, fabric="infiniband", seq=2048, global_batch=512, micro_batch=2, tp=8, pp=4,
    recompute="full",
)  # fmt: skip

Make = Callable[..., Job]


@pytest.fixture
def job() -> Make:
    def make(**changes: Any) -> Job:
        return replace(BASE, **changes)

    return make
