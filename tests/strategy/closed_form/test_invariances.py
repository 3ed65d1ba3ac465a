"""Invariances: what must not cost less, or hold more, whatever the job; jobs are drawn at random, with quotas."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.closed_form.calibration import shipped
from strategy.closed_form.estimate import Estimates, estimate
from strategy.closed_form.job import Job, Jobs, Shape
from strategy.closed_form.price import Pricing
from strategy.hardware.devices import device
from tests.support.long_parameters import long_but

DRAWN = {1: 200, 2: 400}
"""Jobs by seed."""
QUOTA = 20
"""Jobs of each framework, device, stage of ZeRO and way to recompute, at least."""
FRAMEWORKS = ("megatron-core", "megatron-bridge", "nemo", "nemo-automodel", "megatron-deepspeed", "internevo")
DEVICES = ("A100-80", "H100", "H200", "B200", "GB200", "MI300X")
EXACT = 1 + 1e-9
WAVES = 1.01
"""Tiles of eight products and of one fill the last wave of a device differently, by less than this."""
HOST = 0.1
"""The device is the limit where the host adds less than this share of a step."""


def drawn(seed: int, devices: tuple[str, ...] = DEVICES) -> list[Job]:
    """Jobs of large products: at least 4,096 wide, and 4,096 tokens of a micro-batch on a device."""
    rng = random.Random(seed)
    jobs: list[Job] = []
    while len(jobs) < DRAWN[seed]:
        tp, pp, dp, zero = rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4)), rng.choice((2, 4, 8)), rng.choice((0, 1, 3))
        hidden, micro = rng.choice((4096, 6144, 8192, 12288)), rng.choice((1, 2, 4))
        gated = rng.random() < 0.5
        shape = Shape.transformer(
            layers=rng.choice((16, 32, 48)), hidden=hidden, heads=hidden // 128, kv_heads=8 if gated else 0,
            ffn=rng.choice((3, 4)) * hidden, vocab=rng.choice((32000, 51200, 128256)), gated=gated, tied=not gated,
        )  # fmt: skip
        try:
            jobs.append(
                Job(
                    shape=shape, device=device(rng.choice(devices)), framework=rng.choice(FRAMEWORKS), precision="half",
                    gpus=tp * pp * dp, gpus_per_node=8, nic_bytes_per_s=25e9 * rng.choice((1, 2)), fabric="infiniband",
                    seq=rng.choice((4096, 8192)), global_batch=dp * micro * rng.choice((4, 8, 16)), micro_batch=micro,
                    tp=tp, pp=pp, virtual=rng.choice((1, 2)) if pp > 1 else 1, zero=zero,
                    recompute=rng.choice(("none", "selective", "full")), flash=rng.random() < 0.8,
                    sequence_parallel=tp > 1,
                )
            )  # fmt: skip
        except InputError as why:  # pragma: no cover - a job that the generator should not draw
            pytest.fail(str(why))
    return jobs


def priced(jobs: list[Job]) -> Estimates:
    return estimate(jobs, shipped())


def on_device(jobs: list[Job], others: list[Job]) -> list[tuple[Job, Job]]:
    """Pairs of which the device is the limit in both; most are."""
    late = []
    for some in (jobs, others):
        causes = Pricing(Jobs.of(some), shipped().constants).causes(shipped().constants)
        late.append(causes.other["host"] / priced(some).seconds)
    found = [pair for pair, *host in zip(zip(jobs, others, strict=True), *late, strict=True) if max(host) < HOST]
    print(f"{len(found)} of {len(jobs)} bound by the device")
    assert len(found) >= len(jobs) / 2
    return found


@pytest.fixture(scope="module", params=long_but((1, 2), 0))
def jobs(request: pytest.FixtureRequest) -> list[Job]:
    found = drawn(request.param)
    for name in ("framework", "zero", "recompute", "tp", "pp", "flash"):
        seen = Counter(getattr(job, name) for job in found)
        print(name, dict(seen))
        assert min(seen.values()) >= QUOTA, name
    seen = Counter(job.device.name for job in found)
    print("device", dict(seen))
    assert set(seen) == set(DEVICES)
    assert min(seen.values()) >= QUOTA
    return found


def test_adapters_are_never_slower_than_training_everything(jobs: list[Job]) -> None:
    adapted = [replace(job, frozen=True, adapter_rank=16) for job in jobs]
    full, less = map(list, zip(*on_device(jobs, adapted), strict=True))
    ratio = priced(less).seconds / priced(full).seconds
    assert ratio.max() <= EXACT, less[int(ratio.argmax())]


def test_eight_bits_are_never_slower_than_sixteen(jobs: list[Job]) -> None:
    """On devices that have them, in systems that were run with them."""
    able = [job for job in jobs if job.device.name != "A100-80" and job.framework in FRAMEWORKS[:4]]
    assert len(able) >= 5 * QUOTA
    half, eight = map(list, zip(*on_device(able, [replace(job, precision="eight") for job in able]), strict=True))
    ratio = priced(eight).seconds / priced(half).seconds
    assert ratio.max() <= EXACT, half[int(ratio.argmax())]


def test_more_experts_at_equal_active_parameters_are_never_faster(jobs: list[Job]) -> None:
    few: list[Job] = []
    for job in jobs:
        shape = replace(job.shape, dense_layers=0, moe_layers=job.shape.layers, experts=8, top_k=2,
                        expert_ffn=job.shape.ffn // 2)  # fmt: skip
        few.append(replace(job, shape=shape, ep=min(8, job.dp * job.tp)))
    for times in (2, 8):
        many = [replace(job, shape=replace(job.shape, experts=8 * times)) for job in few]
        ratio = priced(many).seconds / priced(few).seconds
        assert ratio.min() >= 1 / WAVES, many[int(ratio.argmin())]


def test_twice_the_replicas_at_a_fixed_batch_never_hold_more(jobs: list[Job]) -> None:
    few, many = (priced(some).footprint for some in (jobs, [replace(job, gpus=2 * job.gpus) for job in jobs]))
    ratio = many.allocated / few.allocated
    assert ratio.max() <= EXACT, jobs[int(ratio.argmax())]
    assert np.any(ratio < 0.99), "shared states do shrink"
