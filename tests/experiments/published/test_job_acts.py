"""Jobs as acts take what the closed form says, which knows no acts, and their messages and waits are seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.published.job_acts import simulated_seconds
from strategy.closed_form.calibration import shipped
from strategy.closed_form.estimate import estimate
from strategy.closed_form.job import Job, Shape
from strategy.hardware.devices import DEVICES

GPT = Job(
    shape=Shape.transformer(48, 6144, 48, 4 * 6144, 51200), device=DEVICES["A100-80"], framework="megatron",
    precision="half", gpus=256, gpus_per_node=8, nic_bytes_per_s=25e9, fabric="infiniband", seq=2048,
    global_batch=512, micro_batch=1, tp=8, pp=8, recompute="full",
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pp": 1, "gpus": 32},
        {"virtual": 3},
        {"recompute": "none", "micro_batch": 4},
        {"framework": "megatron-deepspeed"},
        {"global_batch": 4096},
    ],
)
def test_the_closed_form_is_the_sum_of_the_acts(changes: dict[str, object]) -> None:
    job = replace(GPT, **changes)
    assert simulated_seconds([job], shipped()) == pytest.approx(estimate([job], shipped()).seconds, rel=0.01)


def test_several_at_once_are_one_after_another() -> None:
    other = replace(GPT, pp=4)
    alone = [float(simulated_seconds([job], shipped())[0]) for job in (GPT, other)]
    assert simulated_seconds([GPT, other], shipped()).tolist() == pytest.approx(alone)
    assert alone[0] != pytest.approx(alone[1], rel=1e-3)
