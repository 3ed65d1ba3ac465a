"""An MLP that drops out: its layers add to what they read what they have left of it, so that both can be one op."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.models.mlp import GeluLayer, MlpConfig
from strategy.nn.layers import Dropout, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor


@dataclass(frozen=True, slots=True)
class DroppedConfig(MlpConfig):
    """As an MLP's, and the rate at which figures are dropped."""

    rate: float = 0.25

    def module(self) -> Module:
        """The model, to be traced."""
        return _Dropped(self)


class _DroppedLayer(Module):
    """A linear map and a GELU, of which some is dropped and the rest added to what was read."""

    def __init__(self, width: int, rate: float) -> None:
        self.map = GeluLayer(width, width)
        self.dropout = Dropout(rate)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, width] -> [b, width]."""
        dropped: Tensor = self.dropout(self.map(inputs[0]))
        return inputs[0].apply("residual", "add", dropped)


class _Dropped(Module):
    """Features and classes -> summed loss and count."""

    def __init__(self, config: DroppedConfig) -> None:
        self.first = GeluLayer(config.features, config.width)
        self.dropout = Dropout(config.rate)
        self.layers = Layers([_DroppedLayer(config.width, config.rate) for _ in range(config.layers)])
        self.head = Linear(config.width, config.classes)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(features[b, f], labels[b]) -> (loss[], count[])."""
        features, labels = inputs
        logits = self.head(self.layers(self.dropout(self.first(features))))
        return cross_entropy(logits, labels)
