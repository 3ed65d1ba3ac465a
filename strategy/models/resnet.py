"""ResNet (He et al. 2015, arXiv:1512.03385, table 1), its stride in the 3 x 3 convolution as torchvision has it.

The loss is the sum of the samples' cross-entropies. Repeated layers are the blocks of all stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strategy.models.base import Family, Preset
from strategy.models.images import COLOURS, ConvNorm, ImageModel
from strategy.nn.layers import Linear, global_avg_pool, max_pool
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor

_EXPANSION = 4
"""Channels that leave a bottleneck, over those inside."""


@dataclass(frozen=True, slots=True)
class ResNetConfig(ImageModel):
    """Dimensions of a ResNet: blocks per stage, channels of the first stage, and which kind of block."""

    blocks: tuple[int, ...]
    width: int
    bottleneck: bool

    @property
    def layers(self) -> int:
        """All blocks."""
        return sum(self.blocks)

    def module(self) -> Module:
        """The model, to be traced."""
        return ResNet(self)

    def block_shapes(self) -> Iterator[tuple[int, int, int, int]]:
        """Of every block: channels in, inside and out, and the stride. Each stage but the first halves the image."""
        inputs = self.width
        for stage, count in enumerate(self.blocks):
            inside = self.width << stage
            outputs = inside * (_EXPANSION if self.bottleneck else 1)
            for number in range(count):
                yield inputs, inside, outputs, 2 if stage and not number else 1
                inputs = outputs


class ResidualBlock(Module):
    """Two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1 as a bottleneck, added to what came in."""

    def __init__(self, inputs: int, inside: int, outputs: int, stride: int, *, bottleneck: bool) -> None:
        if bottleneck:
            self.conv1 = ConvNorm(inputs, inside, (1, 1))
            self.conv2 = ConvNorm(inside, inside, (3, 3), stride=stride, padding=(1, 1))
            self.conv3: ConvNorm | None = ConvNorm(inside, outputs, (1, 1), relu=False)
        else:
            self.conv1 = ConvNorm(inputs, inside, (3, 3), stride=stride, padding=(1, 1))
            self.conv2 = ConvNorm(inside, outputs, (3, 3), padding=(1, 1), relu=False)
            self.conv3 = None
        changes = inputs != outputs or stride != 1
        self.shortcut = ConvNorm(inputs, outputs, (1, 1), stride=stride, relu=False) if changes else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h / stride, w / stride]."""
        (x,) = inputs
        y: Tensor = self.conv2(self.conv1(x))
        if self.conv3 is not None:
            y = self.conv3(y)
        x = x if self.shortcut is None else self.shortcut(x)
        return y.apply("residual", "add", x).apply("relu", "relu")


class ResNet(Module):
    """Images and classes -> summed loss and count."""

    def __init__(self, config: ResNetConfig) -> None:
        self.stem = ConvNorm(COLOURS, config.width, (7, 7), stride=2, padding=(3, 3))
        shapes = list(config.block_shapes())
        self.layers = Layers([ResidualBlock(*shape, bottleneck=config.bottleneck) for shape in shapes])
        self.head = Linear(shapes[-1][2], config.classes)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(images[b, c, h, w], labels[b]) -> (loss[], count[])."""
        images, labels = inputs
        x = max_pool(self.stem(images), "pool", (3, 3), (2, 2), (1, 1))
        logits = self.head(global_avg_pool(self.layers(x), "features"))
        return cross_entropy(logits, labels)


def _preset(*blocks: int, bottleneck: bool = True) -> Preset:
    config = ResNetConfig(side=224, classes=1000, blocks=blocks, width=64, bottleneck=bottleneck)
    return Preset(config, 256)


FAMILY = Family(
    "resnet",
    ResNetConfig,
    {
        "resnet-tiny": Preset(ResNetConfig(side=16, classes=7, blocks=(1, 2), width=4, bottleneck=True), 8),
        "resnet18": _preset(2, 2, 2, 2, bottleneck=False),
        "resnet50": _preset(3, 4, 6, 3),
        "resnet101": _preset(3, 4, 23, 3),
    },
)
"""Batches: He et al., section 3.4; resnet-tiny is ours."""
