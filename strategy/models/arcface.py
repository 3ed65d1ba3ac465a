"""ArcFace: a residual network that turns faces into directions, trained to tell apart a huge number of people.

Deng et al. 2019 (arXiv:1801.07698), section 3; the network is the authors' improved residual one (`iresnet` of their
InsightFace). With a million people most parameters are the classes' directions; split over the classes, as in section 3
of An et al. 2021 (arXiv:2010.05222), each rank scores its own. The loss is the sum of the faces' losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.images import ImageBatches
from strategy.nn.layers import BatchNorm, Conv2d, Linear
from strategy.nn.losses import margin_softmax
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor

HALVINGS = 4
"""Every group of blocks halves height and width."""


@dataclass(frozen=True, slots=True)
class ArcFaceConfig(ImageBatches):
    """Dimensions: blocks and channels of every group, a side of the images, the features of a face, and people."""

    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    side: int
    features: int
    classes: int

    def __post_init__(self) -> None:
        for name in ("side", "features", "classes"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"ArcFace: {name}", got=getattr(self, name), expected="at least 1")
        sizes = (*self.blocks, *self.channels)
        if len(self.blocks) != HALVINGS or len(self.channels) != HALVINGS or min(sizes) < 1:
            expected = f"{HALVINGS} numbers above zero each"
            raise InputError(
                "not groups of blocks", where="ArcFace", got=(self.blocks, self.channels), expected=expected
            )

    @property
    def layers(self) -> int:
        """Blocks of all groups."""
        return sum(self.blocks)

    def block_shapes(self) -> Iterator[tuple[int, int, bool]]:
        """Of every block: channels in and out, and whether it is a group's first one, which halves the images."""
        before = self.channels[0]
        for count, after in zip(self.blocks, self.channels, strict=True):
            for number in range(count):
                yield before, after, number == 0
                before = after

    @property
    def last_side(self) -> int:
        """A side of the last images."""
        side = self.side
        for _ in range(HALVINGS):
            side = -(-side // 2)
        return side

    @property
    def backbone_parameters(self) -> int:
        """Of the network, without the classes' directions."""
        first, last = self.channels[0], self.channels[-1]
        blocks = sum(block_parameters(*shape) for shape in self.block_shapes())
        flat = last * self.last_side**2
        return 27 * first + 3 * first + blocks + 2 * last + (flat + 1) * self.features + 2 * self.features

    @property
    def parameters(self) -> int:
        """The network, and a direction per class."""
        return self.backbone_parameters + self.features * self.classes

    def module(self) -> Module:
        """The model, to be traced."""
        return ArcFace(self)


def block_parameters(before: int, after: int, first: bool) -> int:
    """Two convolutions, three batch norms and a slope per channel; of a first block, those of the shortcut too."""
    shortcut = before * after + 2 * after if first else 0
    return 2 * before + 9 * before * after + 3 * after + 9 * after * after + 2 * after + shortcut


class Prelu(Module):
    """x where it is positive, else a slope per channel times x (He et al. 2015, arXiv:1502.01852)."""

    def __init__(self, channels: int) -> None:
        self.slope = Parameter((channels,), "normal(0.25)")

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, c, h, w] -> [b, c, h, w]."""
        (x,) = inputs
        slope = self.parameter("slope", x).reshape("slope_column", (x.shape[1], 1, 1))
        below = x.apply("minus", "neg").apply("below", "relu").apply("scaled", "mul", slope)
        return x.apply("above", "relu").apply("prelu", "sub", below)


class ImprovedResidualBlock(Module):
    """Batch norm, convolution, batch norm, PReLU, convolution, batch norm, and the shortcut."""

    def __init__(self, before: int, after: int, first: bool) -> None:
        stride = (2, 2) if first else (1, 1)
        self.norm1 = BatchNorm(before)
        self.conv1 = Conv2d(before, after, (3, 3), padding=(1, 1), bias=False)
        self.norm2 = BatchNorm(after)
        self.prelu = Prelu(after)
        self.conv2 = Conv2d(after, after, (3, 3), stride=stride, padding=(1, 1), bias=False)
        self.norm3 = BatchNorm(after)
        self.shortcut = Conv2d(before, after, (1, 1), stride=stride, bias=False) if first else None
        self.shortcut_norm = BatchNorm(after) if first else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, before, h, w] -> [b, after, h / 2, w / 2] in a group's first block, else of the same size."""
        (x,) = inputs
        y: Tensor = self.conv1(self.norm1(x))
        y = self.norm3(self.conv2(self.prelu(self.norm2(y))))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return y.apply("residual", "add", x)


class Backbone(Module):
    """Faces -> features. The last norm's gain, which the authors keep at one, is trained here."""

    def __init__(self, config: ArcFaceConfig) -> None:
        first, last = config.channels[0], config.channels[-1]
        self.conv = Conv2d(3, first, (3, 3), padding=(1, 1), bias=False)
        self.norm = BatchNorm(first)
        self.prelu = Prelu(first)
        self.layers = Layers([ImprovedResidualBlock(*shape) for shape in config.block_shapes()])
        self.last_norm = BatchNorm(last)
        flat = last * config.last_side**2
        self.fc = Linear(flat, config.features, std=math.sqrt(1 / flat))
        self.features = BatchNorm(config.features)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, 3, i, i] -> [b, features]."""
        x = self.prelu(self.norm(self.conv(inputs[0])))
        x = self.last_norm(self.layers(x))
        b, *rest = x.shape
        features: Tensor = self.features(self.fc(x.reshape("flat", (b, math.prod(rest)))))
        return features


class ArcFace(Module):
    """Faces and people -> summed loss and count."""

    def __init__(self, config: ArcFaceConfig) -> None:
        self.backbone = Backbone(config)
        self.head = Parameter((config.features, config.classes), "normal(0.01)")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(images[b, 3, i, i], labels[b]) -> (loss[], count[])."""
        images, labels = inputs
        return margin_softmax(self.backbone(images), self.parameter("head", images), labels)


FAMILY = Family(
    "arcface",
    ArcFaceConfig,
    {
        "arcface-tiny": Preset(ArcFaceConfig((1, 2, 1, 1), (4, 4, 6, 8), 16, 8, 12), 8),
        "arcface-r50": Preset(ArcFaceConfig((3, 4, 14, 3), (64, 128, 256, 512), 112, 512, 85742), 512),
        "arcface-r100": Preset(ArcFaceConfig((3, 13, 30, 3), (64, 128, 256, 512), 112, 512, 85742), 512),
        "arcface-1m": Preset(ArcFaceConfig((3, 13, 30, 3), (64, 128, 256, 512), 112, 512, 1000000), 512),
    },
)
"""The people of MS1MV2 and the batch of section 3.1; a million people is ours, and so is arcface-tiny."""
