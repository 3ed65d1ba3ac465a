"""VGG (Simonyan and Zisserman 2014, arXiv:1409.1556, table 1): stages of 3 x 3 convolutions, and three linear maps.

The loss is the sum of the samples' cross-entropies. Repeated layers are the convolutions of all stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.images import COLOURS, ImageModel
from strategy.nn.layers import Conv2d, Dropout, Linear, max_pool
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor

_WIDEST = 8
"""Channels of the widest stages, over those of the first: stages double until then."""


@dataclass(frozen=True, slots=True)
class VggConfig(ImageModel):
    """Dimensions of a VGG: convolutions per stage, channels of the first stage, hidden units, and their dropout."""

    convolutions: tuple[int, ...]
    width: int
    hidden: int
    dropout: float

    def __post_init__(self) -> None:
        ImageModel.__post_init__(self)
        if self.side % (1 << len(self.convolutions)):
            expected = f"a multiple of {1 << len(self.convolutions)}: every stage halves the image"
            raise InputError("the image cannot be halved", where="Vgg: side", got=self.side, expected=expected)

    @property
    def layers(self) -> int:
        """All convolutions."""
        return sum(self.convolutions)

    def module(self) -> Module:
        """The model, to be traced."""
        return Vgg(self)

    def layer_shapes(self) -> Iterator[tuple[int, int, bool]]:
        """Of every convolution: channels in and out, and whether its stage ends with it."""
        inputs = COLOURS
        for stage, count in enumerate(self.convolutions):
            outputs = self.width * min(1 << stage, _WIDEST)
            for number in range(count):
                yield inputs, outputs, number == count - 1
                inputs = outputs


class Layer(Module):
    """A convolution and a ReLU; the last of a stage takes the largest of every 2 x 2 pixels."""

    def __init__(self, inputs: int, outputs: int, last: bool) -> None:
        self.conv = Conv2d(inputs, outputs, (3, 3), padding=(1, 1))
        self.last = last

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h, w], or [n, outputs, h / 2, w / 2]."""
        y = self.conv(inputs[0]).apply("relu", "relu")
        return max_pool(y, "pool", (2, 2), (2, 2)) if self.last else y


class ClassifierLayer(Module):
    """A linear map, a ReLU and dropout; the start keeps the variance (He et al. 2015, arXiv:1502.01852)."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        self.fc = Linear(inputs, outputs, std=math.sqrt(2 / inputs))
        self.dropout = Dropout(dropout)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs] -> [n, outputs]."""
        hidden: Tensor = self.dropout(self.fc(inputs[0]).apply("relu", "relu"))
        return hidden


class Vgg(Module):
    """Images and classes -> summed loss and count."""

    def __init__(self, config: VggConfig) -> None:
        shapes = list(config.layer_shapes())
        pixels = (config.side >> len(config.convolutions)) ** 2
        self.layers = Layers([Layer(*shape) for shape in shapes])
        self.hidden1 = ClassifierLayer(shapes[-1][1] * pixels, config.hidden, config.dropout)
        self.hidden2 = ClassifierLayer(config.hidden, config.hidden, config.dropout)
        self.head = Linear(config.hidden, config.classes)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(images[b, c, h, w], labels[b]) -> (loss[], count[])."""
        images, labels = inputs
        x = self.layers(images)
        flat = x.reshape("flat", (x.shape[0], math.prod(x.shape[1:])))
        return cross_entropy(self.head(self.hidden2(self.hidden1(flat))), labels)


FAMILY = Family(
    "vgg",
    VggConfig,
    {
        "vgg-tiny": Preset(
            VggConfig(side=8, classes=7, convolutions=(1, 2), width=6, hidden=20, dropout=0.25),
            8,
        ),
        "vgg16": Preset(
            VggConfig(side=224, classes=1000, convolutions=(2, 2, 3, 3, 3), width=64, hidden=4096, dropout=0.5),
            256,
        ),
    },
)
"""Batch: Simonyan and Zisserman, section 3.1; vgg-tiny is ours."""
