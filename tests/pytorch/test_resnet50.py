"""ResNet-50 with weights that follow from their names computes torchvision's logits, loss and gradients in float64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from strategy.graph.graph import Graph, Role
from strategy.models import find_model
from strategy.models.images import ImageModel
from strategy.models.resnet import ResNetConfig
from strategy.nn.tracer import Tracer
from strategy.passes.autodiff import differentiate
from strategy.sbp.tensor import DType, TensorSpec
from tests.pytorch.generate import CLASSES, HERE, IMAGES, SIDE, drawn, labels, sample_of
from tests.support.reference import Array, run_graph

WITHIN = 1e-4
OUTER = {
    "stem.conv.weight": "conv1.weight",
    "stem.norm.weight": "bn1.weight",
    "stem.norm.bias": "bn1.bias",
    "head.weight": "fc.weight",
    "head.bias": "fc.bias",
}


@pytest.fixture(scope="module")
def theirs() -> Mapping[str, Array]:
    """What PyTorch computed."""
    with np.load(HERE / "resnet50.npz") as file:
        return dict(file)


def their_name(model: ResNetConfig, ours: str) -> str:
    """Torchvision's name of a parameter."""
    if ours in OUTER:
        return OUTER[ours]
    number, part, kind, what = re.fullmatch(r"layers\.(\d+)\.(\w+)\.(conv|norm)\.(\w+)", ours).groups()  # type: ignore[union-attr]
    stage, block = [(s + 1, b) for s, count in enumerate(model.blocks) for b in range(count)][int(number)]
    where = f"layer{stage}.{block}"
    if part == "shortcut":
        return f"{where}.downsample.{0 if kind == 'conv' else 1}.{what}"
    return f"{where}.{part if kind == 'conv' else part.replace('conv', 'bn')}.{what}"


def traced(model: ImageModel) -> tuple[Graph, dict[str, str]]:
    """The graph of loss and gradients, and the gradient of every parameter."""
    tracer, module = Tracer(), model.module()
    tracer.adopt(module, DType.FLOAT64)
    specs = model.inputs(IMAGES)
    images = tracer.input("images", TensorSpec(specs["images"].shape, DType.FLOAT64))
    loss, _ = module(images, tracer.input("labels", specs["labels"]))
    gradients = {name: term for name, (term,) in differentiate(tracer.graph, loss.name).items()}
    return tracer.graph.build(loss=loss.name), gradients


def test_resnet50_computes_what_pytorch_computes(theirs: Mapping[str, Array]) -> None:
    model = find_model("resnet50")
    assert isinstance(model, ResNetConfig)
    model = replace(model, side=SIDE, classes=CLASSES)
    graph, gradients = traced(model)
    variables = {value.name: np.zeros(value.spec.shape) for value in graph.with_role(Role.VARIABLE)}
    names = {ours: their_name(model, ours) for ours in gradients}
    assert {f"gradient {name}" for name in names.values()} == {name for name in theirs if name.startswith("gradient")}
    for ours, name in names.items():
        shape = variables[ours].shape
        variables[ours] = drawn(name, shape[::-1]).T if ours == "head.weight" else drawn(name, shape)
    images = drawn("images", (IMAGES, 3, SIDE, SIDE))
    values = run_graph(graph, [{"images": images, "labels": labels()}], variables)
    assert np.max(np.abs(values["head.bias_add"] - theirs["logits"])) <= WITHIN
    assert values[graph.loss] / IMAGES == pytest.approx(float(theirs["loss"]), abs=WITHIN)
    for ours, name in names.items():
        gradient = values[gradients[ours]] / IMAGES
        sample = sample_of(name, gradient.T if ours == "head.weight" else gradient)
        wanted = theirs[f"gradient {name}"]
        assert np.max(np.abs(sample - wanted)) <= WITHIN, name
