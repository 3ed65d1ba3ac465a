"""Models of images have their published sizes, and train alike on one device and laid out over two ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Role
from strategy.models import find_model
from strategy.models.images import ImageModel
from strategy.models.inception import InceptionConfig
from strategy.models.resnet import ResNetConfig
from strategy.models.vgg import VggConfig
from strategy.passes.training import Training, evaluation_graph, training_graph
from strategy.plan.plan import read_plan, write_plan
from strategy.sbp.tensor import DType
from strategy.space.request import Request
from tests.campaigns.transparency import check
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, random_plan, request

PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "vgg16": 138_357_544,
    "inception-v3": 23_834_568,
    "inception-v3-auxiliary": 27_161_264,
}
"""Of torchvision's models; Inception-V3 without and with its auxiliary head."""
BASIC = ResNetConfig(side=16, classes=5, blocks=(1, 1), width=4, bottleneck=False)
SMALL = {
    "bottleneck": find_model("resnet-tiny"),
    "basic": BASIC,
    "vgg": find_model("vgg-tiny"),
    "inception": find_model("inception-tiny"),
}
"""One model of every shape."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    assert find_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize(("name", "layers"), [("resnet50", 16), ("vgg16", 13), ("inception-v3", 11)])
def test_every_repeated_layer_is_one_of_the_graph(name: str, layers: int) -> None:
    model = find_model(name)
    assert model.layers == layers
    assert training_graph(model, Training(1)).num_layers == layers


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("resnet50", {"pool": (2, 64, 56, 56), "features": (2, 2048)}),
        ("vgg16", {"layers.12.pool": (2, 512, 7, 7), "flat": (2, 25088)}),
        ("inception-v3", {"layers.2.join": (2, 288, 35, 35), "layers.7.join": (2, 768, 17, 17), "features": (2, 2048)}),
    ],
)
def test_images_shrink_as_published(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    values = training_graph(find_model(name), Training(2)).values
    assert {found: values[found].spec.shape for found in shapes} == shapes


def test_the_auxiliary_head_trains_halfway_up_and_is_absent_in_evaluation() -> None:
    model = find_model("inception-v3-auxiliary")
    graph, training = training_graph(model, Training(2)), Training(2)
    assert graph.by_name["auxiliary.pool"].inputs == ("layers.7.join",)
    assert graph.values["auxiliary.pool"].spec.shape == (2, 768, 5, 5)
    assert graph.values["auxiliary.wide.relu"].spec.shape == (2, 768, 1, 1)
    assert graph.by_name["loss"].inputs == ("main", "other.share")
    assert graph.by_name["other.share"].attrs == {"factor": 0.3}
    updated = {name for op in graph.ops for name in op.updates}
    held = {value.name for value in graph.with_role(Role.VARIABLE) if value.name.startswith("auxiliary.")}
    assert len(held) == 28, "8 parameters with two moments each, and 4 running statistics"
    assert held <= updated
    evaluated = evaluation_graph(model, training)
    assert not any(op.name.startswith(("auxiliary", "other")) for op in evaluated.ops)
    assert evaluated.by_name["loss"].kind == "cross_entropy"


def asked(name: str) -> Request:
    """Two ranks train a small model; of the quick ones, by two micro-batches."""
    count = 1 if name == "inception" else 2
    training = Training(global_batch=4 * count, num_micro_batches=count, dtype=DType.FLOAT64)
    return request(2, training, model=SMALL[name])


@pytest.mark.parametrize("name", long_but(SMALL, 0, 1, 2))
def test_data_parallel_computes_what_one_device_computes(name: str) -> None:
    found = asked(name)
    plan = deduced_plan(found, config_of(found.training, dp=2), ("data", "tensor"))
    assert list(check(plan)) == []


@pytest.mark.parametrize("name", long_but(SMALL, 1, 2))
def test_any_layout_computes_what_one_device_computes(name: str, tmp_path: Path) -> None:
    """And its plan can be read again."""
    found = asked(name)
    plan = random_plan(found, config_of(found.training, tp=2), random.Random(0))
    assert list(check(plan)) == []
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


def test_evaluation_uses_running_statistics_and_drops_nothing() -> None:
    for name, kinds in (("resnet-tiny", {"running_average"}), ("vgg-tiny", {"dropout"})):
        model = find_model(name)
        trained, evaluated = training_graph(model, Training(4)), evaluation_graph(model, Training(4))
        assert kinds <= {op.kind for op in trained.ops}
        assert kinds.isdisjoint(op.kind for op in evaluated.ops)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (BASIC, {"blocks": (1, 0)}, r"ResNet: blocks: not a size \(got \(1, 0\), expected at least 1"),
        (BASIC, {"blocks": ()}, r"ResNet: blocks: not a size \(got \(\)"),
        (BASIC, {"classes": 0}, r"ResNet: classes: not a size \(got 0"),
        (SMALL["vgg"], {"side": 10}, r"Vgg: side: the image cannot be halved \(got 10, expected a multiple of 4"),
        (SMALL["inception"], {"auxiliary": -0.3}, r"Inception: auxiliary: no share \(got -0.3, expected a finite"),
        (
            SMALL["inception"],
            {"auxiliary": 0.3},
            r"Inception: side: too small an image \(got 75, expected at least 299",
        ),
        (SMALL["inception"], {"side": 74}, r"Inception: side: too small an image \(got 74, expected at least 75"),
    ],
)
def test_dimensions_that_make_no_model_are_refused(model: ImageModel, changes: dict[str, object], message: str) -> None:
    assert isinstance(model, ResNetConfig | VggConfig | InceptionConfig)
    with pytest.raises(InputError, match=message):
        replace(model, **changes)  # type: ignore[arg-type]
