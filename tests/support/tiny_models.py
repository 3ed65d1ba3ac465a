"""Tiny models: a few alike layers of one linear map each, whose plans can all be listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategy.models.base import RandomFeatures, Source
from strategy.nn.layers import Linear
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Dimensions of a tiny model.

    Attributes:
        layers: linear maps without bias, from `width` features to as many.
        width: of a sample.
        activation: the kind of the op behind every map; none if empty.
        loss_in_layer: whether the loss belongs to the last layer, so that along the data axis it follows the samples.
    """

    layers: int
    width: int
    activation: str = ""
    loss_in_layer: bool = False

    @property
    def parameters(self) -> int:
        """Weights of all maps."""
        return self.layers * self.width**2

    @property
    def tokens_per_sample(self) -> int:
        """A sample has no tokens."""
        return 1

    @property
    def batch(self) -> Mapping[str, Source]:
        """Noise."""
        return {"features": RandomFeatures()}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """features[b, width]."""
        return {"features": TensorSpec((micro_batch, self.width))}

    def module(self) -> Module:
        """The model, to be traced."""
        return _Tiny(self)


class _TinyLayer(Module):
    def __init__(self, config: TinyConfig, *, ends: bool) -> None:
        self.fc = Linear(config.width, config.width, bias=False)
        self.activation, self.ends = config.activation, ends

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """[b, width] -> [b, width], or the loss and its count."""
        y: Tensor = self.fc(inputs[0])
        if self.activation:
            y = y.apply("activation", self.activation)
        return _loss(y) if self.ends else y


class _Tiny(Module):
    def __init__(self, config: TinyConfig) -> None:
        last = config.layers - 1 if config.loss_in_layer else None
        self.layers = Layers([_TinyLayer(config, ends=layer == last) for layer in range(config.layers)])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """features[b, width] -> (loss[], count[])."""
        found = self.layers(*inputs)
        return found if isinstance(found, tuple) else _loss(found)


def _loss(y: Tensor) -> tuple[Tensor, Tensor]:
    loss = y.apply("loss", "square_sum")
    return loss, loss.apply("count", "full_like", attrs={"value": 1.0})
