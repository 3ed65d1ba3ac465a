"""MLP: a multi-layer perceptron that classifies vectors of features.

The loss is the sum of the samples' cross-entropies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Integers, Preset, RandomFeatures, Source
from strategy.nn.layers import Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import DType, TensorSpec


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """Dimensions of an MLP: a first map from the features, `layers` hidden maps, and the head."""

    layers: int
    features: int
    width: int
    classes: int

    def __post_init__(self) -> None:
        for name in ("layers", "features", "width", "classes"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"MLP: {name}", got=getattr(self, name), expected="at least 1")

    @property
    def parameters(self) -> int:
        """Weights and biases of `layers` + 2 linear maps."""
        ends = (self.features + 1) * self.width + (self.width + 1) * self.classes
        return ends + self.layers * (self.width + 1) * self.width

    @property
    def tokens_per_sample(self) -> int:
        """A sample has no tokens."""
        return 1

    @property
    def batch(self) -> Mapping[str, Source]:
        """Features that resemble those of the same class."""
        return {"features": RandomFeatures("labels"), "labels": Integers(self.classes)}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """features[b, f] and labels[b]."""
        return {
            "features": TensorSpec((micro_batch, self.features)),
            "labels": TensorSpec((micro_batch,), DType.INT32),
        }

    def module(self) -> Module:
        """The model, to be traced."""
        return Mlp(self)


class GeluLayer(Module):
    """A linear map and a GELU; the start keeps the variance (He et al. 2015, arXiv:1502.01852)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.fc = Linear(inputs, outputs, std=math.sqrt(2 / inputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, inputs] -> [b, outputs]."""
        hidden: Tensor = self.fc(inputs[0])
        return hidden.apply("gelu", "gelu")


class Mlp(Module):
    """Features and classes -> summed loss and count."""

    def __init__(self, config: MlpConfig) -> None:
        self.first = GeluLayer(config.features, config.width)
        self.layers = Layers([GeluLayer(config.width, config.width) for _ in range(config.layers)])
        self.head = Linear(config.width, config.classes)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(features[b, f], labels[b]) -> (loss[], count[])."""
        features, labels = inputs
        logits = self.head(self.layers(self.first(features)))
        return cross_entropy(logits, labels)


FAMILY = Family(
    "mlp",
    MlpConfig,
    {
        "mlp-tiny": Preset(MlpConfig(layers=2, features=64, width=128, classes=10), 32),
        "mlp": Preset(MlpConfig(layers=6, features=4096, width=4096, classes=1000), 1024),
    },
)
"""Dimensions are ours."""
