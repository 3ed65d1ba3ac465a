"""A step as one GPU sees it: every parameter's gradient, its size, and compute near published throughputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.exchange.fabric import tcp_cloud
from simulator.exchange.tables import split_tables
from simulator.exchange.training import simulate
from simulator.exchange.workload import workload
from strategy.base.errors import InputError
from strategy.hardware.devices import DEVICES
from strategy.models import find_model
from strategy.models.wide_deep import WideDeepConfig


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "bert-base", "arcface-r50"])
def test_every_parameter_has_a_gradient_of_its_size(name: str) -> None:
    model = find_model(name)
    found = workload(name, model, 8, DEVICES["V100-16"])
    assert sum(found.nbytes) == 4 * model.parameters
    assert found.name == name


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


def test_rows_of_split_tables_are_waited_for_and_their_gradients_stay() -> None:
    whole = workload("clicks", WideDeepConfig(2, 16, 4000, 4, 5, 2, 3), 8, DEVICES["V100-16"])
    split, scheme = split_tables(whole, 4 * 4000, 10**6)
    assert {split.nbytes[number] for number in scheme.kept} == {4 * 4000, 4 * 4000 * 4}
    fast, slow = (
        simulate(split, replace(tcp_cloud(1, 25), straggle=0.0, inside_bytes_per_s=rate), scheme)
        for rate in (130e9, 13e9)
    )
    rows_ns = 2 * 7 / 8 * 10**6 * (1e9 / 13e9 - 1e9 / 130e9)
    assert slow.step_ns - fast.step_ns == pytest.approx(rows_ns, rel=0.1)
    with pytest.raises(InputError, match="no tables"):
        split_tables(whole, 10**9, 1)
    with pytest.raises(InputError, match="inside a node"):
        simulate(split, tcp_cloud(2, 25), scheme)
