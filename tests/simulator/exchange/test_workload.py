"""A step as one GPU sees it: every parameter's gradient, its size, and compute near published throughputs."""

from __future__ import annotations

import pytest

from simulator.exchange.workload import workload
from strategy.estimate.devices import DEVICES
from strategy.models import find_model


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "bert-base", "arcface-r50"])
def test_every_parameter_has_a_gradient_of_its_size(name: str) -> None:
    model = find_model(name)
    found = workload(name, model, 8, DEVICES["V100-16"])
    assert sum(found.nbytes) == 4 * model.parameters


def test_gradients_are_needed_from_the_front_and_given_from_the_back() -> None:
    found = workload("resnet50", find_model("resnet50"), 8, DEVICES["V100-16"])
    needed = [gradient for span in found.spans for gradient in span.needs]
    given = [gradient for span in found.spans for gradient in span.gives]
    assert needed == sorted(needed) == list(range(161))
    assert given[0] > 150
    assert given[-1] < 3


@pytest.mark.parametrize(("gpu", "name", "per_s"), [
    ("P100", "resnet50", 219), ("P100", "vgg16", 154), ("V100-16", "resnet50", 363),
])  # fmt: skip
def test_images_per_second_are_near_those_of_tensorflow(gpu: str, name: str, per_s: float) -> None:
    """TensorFlow's benchmarks on a DGX-1 with P100s, and NVIDIA's of a V100; a roofline is a little fast."""
    found = workload(name, find_model(name), 64, DEVICES[gpu])
    assert 0.95 * per_s <= 64e9 / found.compute_ns <= 1.25 * per_s


def test_halves_are_faster_but_their_gradients_as_large() -> None:
    single, half = (workload("r", find_model("resnet50"), 64, DEVICES["V100-16"], width=width) for width in (32, 16))
    assert half.compute_ns < single.compute_ns / 2
    assert half.nbytes == single.nbytes
