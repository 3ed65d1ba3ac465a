"""Every family of image models computes torchvision's logits and gradients; skipped where torch is not installed.

Parameters are matched by their order, which both sides share, and compared in float64 on small images.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strategy.graph.graph import Role
from strategy.models import find_model
from strategy.models.inception import InceptionConfig
from strategy.models.resnet import ResNetConfig
from strategy.models.vgg import VggConfig
from tests.pytorch.test_resnet50 import traced
from tests.support.reference import run_graph

CLASSES, IMAGES = 10, 4
WITHIN = 1e-9
"""Of the largest figure of a tensor."""


def theirs(name: str) -> Any:
    """Torchvision's module, without dropout and with as many classes."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'sbplan[torch]'")
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    torch.manual_seed(0)
    if name == "resnet18":
        return models.resnet18(num_classes=CLASSES)
    if name == "inception-v3":
        return models.inception_v3(num_classes=CLASSES, aux_logits=False, init_weights=False, dropout=0.0)
    found = models.vgg16(num_classes=CLASSES, dropout=0.0)
    found.avgpool, found.classifier[0] = torch.nn.Identity(), torch.nn.Linear(512, 4096)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("resnet18", 64), ("vgg16", 32), ("inception-v3", 139)])
def test_every_family_computes_what_torchvision_computes(name: str, side: int) -> None:
    module = theirs(name).double().train()
    import torch

    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((IMAGES, 3, side, side)), rng.integers(0, CLASSES, IMAGES, np.int32)
    logits = module(torch.from_numpy(images))
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels.astype(np.int64)), reduction="sum")
    loss.backward()
    model = find_model(name)
    assert isinstance(model, ResNetConfig | VggConfig | InceptionConfig)
    model = replace(model, side=side, classes=CLASSES)
    graph, gradients = traced(replace(model, dropout=0.0) if not isinstance(model, ResNetConfig) else model)
    pairs = list(zip(gradients, module.parameters(), strict=True))
    variables = {value.name: np.zeros(value.spec.shape) for value in graph.with_role(Role.VARIABLE)}
    for ours, parameter in pairs:
        variables[ours] = as_ours(parameter.detach().numpy())
    values = run_graph(graph, [{"images": images, "labels": labels}], variables)
    assert values["head.bias_add"] == pytest.approx(logits.detach().numpy(), rel=WITHIN, abs=WITHIN)
    assert float(values[graph.loss]) == pytest.approx(loss.item(), rel=WITHIN)
    for ours, parameter in pairs:
        wanted = as_ours(parameter.grad.numpy())
        assert np.max(np.abs(values[gradients[ours]] - wanted)) <= WITHIN * max(1.0, np.max(np.abs(wanted))), ours


def as_ours(theirs: Any) -> Any:
    """Their linear maps are [out, in]."""
    return theirs.T if theirs.ndim == 2 else theirs
