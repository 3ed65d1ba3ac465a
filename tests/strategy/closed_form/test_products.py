"""Products of jobs: kernels' seconds by device and precision, what does not fit, and what is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.closed_form.job import Job, Jobs, Shape
from strategy.closed_form.products import MultiplyingDevices, ProductSeconds, grouped_training, product, training
from strategy.hardware.devices import DEVICES
from strategy.kernels.on_device import grouped_seconds, product_seconds
from strategy.kernels.precision import KernelPrecision

JOB = Job(
    Shape.transformer(2, 1024, 16, 4096, 50_000), DEVICES["H100"], "megatron", "half", 8, 8, 50e9, "infiniband", 2048,
    8, 1,
)  # fmt: skip
JOBS = Jobs.of([JOB, replace(JOB, device=DEVICES["A100-80"]), replace(JOB, precision="eight")])
BY = MultiplyingDevices.of(JOBS, [job.precision for job in JOBS.jobs])


def sizes(*dims: float) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return [np.full(len(JOBS), float(dim)) for dim in dims]


def test_every_job_multiplies_on_its_own_device_in_its_own_precision() -> None:
    found = product(BY, *sizes(4096, 8192, 2048, 3))
    for seconds, device, precision in zip(
        found.all,
        ("H100", "A100-80", "H100"),
        (KernelPrecision.BF16, KernelPrecision.BF16, KernelPrecision.FP8),
        strict=True,
    ):
        assert seconds == product_seconds(DEVICES[device], precision, *(s[:1] for s in sizes(4096, 8192, 2048, 3)))[0]
    assert found.all[2] < found.all[0] < found.all[1]


@pytest.mark.parametrize(("dim", "odd", "ragged"), [(8192, False, False), (8200, True, False), (8201, True, True)])
def test_dims_that_do_not_fit_the_tensor_cores_are_noted(dim: int, odd: bool, ragged: bool) -> None:
    made = product(BY, *sizes(8192, dim, 8192, 1))
    assert ((made.odd == made.all).all(), (made.ragged == made.all).all()) == (odd, ragged)
    assert odd or not made.odd.any()


def test_an_empty_product_costs_nothing() -> None:
    made = product(BY, *sizes(8192, 0, 8192, 1))
    assert not made.all.any()
    assert not made.odd.any()


def test_a_weight_has_a_forward_product_and_two_gradients() -> None:
    dims = sizes(4096, 1024, 4096, 1)
    forward, of_inputs, of_weights = training(BY, *dims)
    assert (forward.all == product(BY, *dims).all).all()
    assert (of_inputs.all == product(BY, dims[0], dims[2], dims[1], dims[3]).all).all()
    assert (of_weights.all > 0.8 * of_inputs.all).all()


def test_experts_take_their_own_kernels_and_both_gradients() -> None:
    forward, of_inputs, of_weights = grouped_training(BY, *sizes(512, 2048, 1024, 8))
    wanted = grouped_seconds(DEVICES["H100"], KernelPrecision.BF16, *(s[:1] for s in sizes(512, 2048, 1024, 8)))
    assert forward.all[0] == wanted[0]
    assert (of_inputs + of_weights).all == pytest.approx(2 * forward.all, rel=0.25)


def test_seconds_add_up_and_scale() -> None:
    one = ProductSeconds(np.array([1.0]), np.array([0.9]), np.array([0.5]), np.array([0.0]))
    both = one + one * 2.0
    assert both.flat[0] == pytest.approx(2.7)
    assert (both.all[0], both.odd[0], both.ragged[0]) == (3.0, 1.5, 0.0)
