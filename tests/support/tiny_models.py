"""Tiny models: a few alike layers of one linear map each, or of a map per expert, whose plans can all be listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategy.models.base import Integers, RandomFeatures, Source
from strategy.nn.layers import Linear
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import DType, TensorSpec

TOKENS = 2
"""Of a sample, where there are experts."""


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Dimensions of a tiny model.

    Attributes:
        layers: linear maps without bias, from `width` features to as many.
        width: of a sample.
        activation: the kind of the op behind every map; none if empty.
        loss_in_layer: whether the loss belongs to the last layer, so that along the data axis it follows the samples.
        experts: so many maps per layer, of which every token has one, that comes with the sample; none if 0.
    """

    layers: int
    width: int
    activation: str = ""
    loss_in_layer: bool = False
    experts: int = 0

    @property
    def parameters(self) -> int:
        """Weights of all maps."""
        return self.layers * max(self.experts, 1) * self.width**2

    @property
    def tokens_per_sample(self) -> int:
        """A sample has no tokens, unless there are experts."""
        return TOKENS if self.experts else 1

    @property
    def batch(self) -> Mapping[str, Source]:
        """Noise."""
        chosen: dict[str, Source] = {"chosen": Integers(self.experts)} if self.experts else {}
        return {"features": RandomFeatures(), **chosen}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """features[b, width]; with experts, features[b, s, width] and which each token has, chosen[b, s, 1]."""
        if not self.experts:
            return {"features": TensorSpec((micro_batch, self.width))}
        chosen = TensorSpec((micro_batch, TOKENS, 1), DType.INT32)
        return {"features": TensorSpec((micro_batch, TOKENS, self.width)), "chosen": chosen}

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


class _TinyExperts(Module):
    def __init__(self, config: TinyConfig, *, ends: bool) -> None:
        self.maps = Parameter((config.experts, config.width, config.width), "normal(0.1)")
        self.experts, self.activation, self.ends = config.experts, config.activation, ends

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """[b, s, width], [b, s, 1] -> [b, s, width], or the loss and its count."""
        x, chosen = inputs
        rows = x.apply(
            "dispatch", "dropless_dispatch", chosen, attrs={"experts": self.experts, "imbalance": 1.0, "room": 0.0}
        )
        mapped = rows.apply("map", "grouped_matmul", self.parameter("maps", rows), attrs={"transpose": 0})
        y = mapped.apply("combine", "dropless_combine", chosen)
        if self.activation:
            y = y.apply("activation", self.activation)
        return _loss(y) if self.ends else y


class _Tiny(Module):
    def __init__(self, config: TinyConfig) -> None:
        last = config.layers - 1 if config.loss_in_layer else None
        kind = _TinyExperts if config.experts else _TinyLayer
        self.layers = Layers([kind(config, ends=layer == last) for layer in range(config.layers)])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """features (, chosen) -> (loss[], count[])."""
        found, *beside = inputs
        for layer in self.layers.members:
            found = layer(found, *beside)
        return found if isinstance(found, tuple) else _loss(found)


def _loss(y: Tensor) -> tuple[Tensor, Tensor]:
    loss = y.apply("loss", "square_sum")
    return loss, loss.apply("count", "full_like", attrs={"value": 1.0})
