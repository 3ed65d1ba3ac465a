"""Inception-V3 (Szegedy et al. 2015, arXiv:1512.00567) with the channels of torchvision.

The loss is the sum of the samples' cross-entropies, in training with a share of those of an auxiliary head, if there is
one. Repeated layers are the mixed blocks: each runs several chains of convolutions side by side on its input and joins
their channels. Channels are given in units of the model's width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.images import COLOURS, ConvNorm, ImageModel
from strategy.nn.layers import Dropout, Linear, Pair, avg_pool, global_avg_pool, max_pool
from strategy.nn.losses import cross_entropy, joint_loss
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor

_EPSILON = 1e-3
_SMALLEST_SIDE = 75
_SMALLEST_WITH_AUXILIARY = 299
"""Its convolution of 5 x 5 reads means of every third window of 5 x 5."""


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution by the units that it gives; with a frame it keeps the size of the image."""

    units: int
    kernel: Pair = (1, 1)
    stride: int = 1
    framed: bool = True


class Pool(StrEnum):
    """A pool of 3 x 3 windows."""

    MEAN = "mean"
    LARGEST = "largest"
    """This one halves the image."""


Fork: TypeAlias = "tuple[Chain, ...]"
"""Chains that read the same; their channels are joined."""
Chain: TypeAlias = "tuple[Conv | Pool | Fork, ...]"
"""Steps one after another."""

_STEM: Chain = (
    Conv(2, (3, 3), stride=2, framed=False),
    Conv(2, (3, 3), framed=False),
    Conv(4, (3, 3)),
    Pool.LARGEST,
    Conv(5),
    Conv(12, (3, 3), framed=False),
    Pool.LARGEST,
)


@dataclass(frozen=True, slots=True)
class InceptionConfig(ImageModel):
    """Dimensions of an Inception-V3.

    Attributes:
        side: of the images, in pixels.
        classes: of the head.
        width: channels per unit.
        pooled: of every block on the largest images, the units of its pooled chain.
        inside: of every block with 7 x 1 convolutions, the units inside its chains.
        wide: how many blocks on the smallest images.
        dropout: rate before the head.
        auxiliary: share of the auxiliary head's loss in the loss; 0 is no such head.
    """

    width: int
    pooled: tuple[int, ...]
    inside: tuple[int, ...]
    wide: int
    dropout: float
    auxiliary: float = 0.0

    def __post_init__(self) -> None:
        ImageModel.__post_init__(self)
        if not 0 <= self.auxiliary < math.inf:
            where, expected = "Inception: auxiliary", "a finite figure >= 0"
            raise InputError("no share", where=where, got=self.auxiliary, expected=expected)
        smallest = _SMALLEST_WITH_AUXILIARY if self.auxiliary else _SMALLEST_SIDE
        if self.side < smallest:
            expected = f"at least {smallest} pixels"
            raise InputError("too small an image", where="Inception: side", got=self.side, expected=expected)

    @property
    def layers(self) -> int:
        """All mixed blocks, with the two that halve the image."""
        return len(self.pooled) + len(self.inside) + self.wide + 2

    def module(self) -> Module:
        """The model, to be traced."""
        return Inception(self)

    def blocks(self) -> Iterator[Fork]:
        """The mixed blocks in order: torchvision's Mixed_5b to Mixed_7c."""
        three = Conv(6, (3, 3))
        for units in self.pooled:
            yield (Conv(4),), (Conv(3), Conv(4, (5, 5))), (Conv(4), three, three), (Pool.MEAN, Conv(units))
        yield (_halving(24),), (Conv(4), three, _halving(6)), (Pool.LARGEST,)
        for units in self.inside:
            across, down = Conv(units, (1, 7)), Conv(units, (7, 1))
            yield (
                (Conv(12),),
                (Conv(units), across, Conv(12, (7, 1))),
                (Conv(units), down, across, down, Conv(12, (1, 7))),
                (Pool.MEAN, Conv(12)),
            )
        seven = (Conv(12), Conv(12, (1, 7)), Conv(12, (7, 1)))
        yield (Conv(12), _halving(20)), (*seven, _halving(12)), (Pool.LARGEST,)
        both = ((Conv(24, (1, 3)),), (Conv(24, (3, 1)),))
        for _ in range(self.wide):
            yield (Conv(20),), (Conv(24), both), (Conv(28), Conv(24, (3, 3)), both), (Pool.MEAN, Conv(12))


def _halving(units: int) -> Conv:
    return Conv(units, (3, 3), stride=2, framed=False)


class Steps(Module):
    """A chain."""

    def __init__(self, inputs: int, chain: Chain, width: int) -> None:
        self.outputs = inputs
        self.steps: list[Module | Pool] = []
        for step in chain:
            if isinstance(step, Conv):
                padding = (step.kernel[0] // 2, step.kernel[1] // 2) if step.framed else (0, 0)
                channels, stride = step.units * width, step.stride
                conv = ConvNorm(self.outputs, channels, step.kernel, stride=stride, padding=padding, epsilon=_EPSILON)
                self.steps.append(conv)
                self.outputs = channels
            elif isinstance(step, Pool):
                self.steps.append(step)
            else:
                fork = Branches(self.outputs, step, width)
                self.steps.append(fork)
                self.outputs = fork.outputs

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """The steps that hold parameters, by index."""
        yield from ((str(index), step) for index, step in enumerate(self.steps) if isinstance(step, Module))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, p, q]."""
        (x,) = inputs
        for index, step in enumerate(self.steps):
            if isinstance(step, Module):
                x = step(x)
            elif step is Pool.MEAN:
                x = avg_pool(x, f"{index}.mean", (3, 3), (1, 1), (1, 1))
            else:
                x = max_pool(x, f"{index}.largest", (3, 3), (2, 2))
        return x


class Branches(Module):
    """A fork."""

    def __init__(self, inputs: int, fork: Fork, width: int) -> None:
        self.branches = [Steps(inputs, chain, width) for chain in fork]
        self.outputs = sum(branch.outputs for branch in self.branches)

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """The chains by index."""
        yield from ((f"branch{index}", branch) for index, branch in enumerate(self.branches))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, p, q]."""
        (x,) = inputs
        return x.tracer.apply("join", "concat", [branch(x) for branch in self.branches], {"axis": 1})[0]


class AuxiliaryHead(Module):
    """Classes from halfway (Szegedy et al. 2014, arXiv:1409.4842, section 5; figures of torchvision)."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        self.narrow = ConvNorm(inputs, 8 * width, (1, 1), epsilon=_EPSILON)
        self.wide = ConvNorm(8 * width, 48 * width, (5, 5), epsilon=_EPSILON)
        self.head = Linear(48 * width, classes)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[n, inputs, h, w] -> logits[n, classes]."""
        pooled = avg_pool(inputs[0], "pool", (5, 5), (3, 3))
        logits: Tensor = self.head(global_avg_pool(self.wide(self.narrow(pooled)), "features"))
        return logits


class Inception(Module):
    """Images and classes -> summed loss and count."""

    def __init__(self, config: InceptionConfig) -> None:
        self.stem = Steps(COLOURS, _STEM, config.width)
        channels, blocks = self.stem.outputs, []
        for fork in config.blocks():
            blocks.append(Branches(channels, fork, config.width))
            channels = blocks[-1].outputs
        self.halfway = len(config.pooled) + len(config.inside)
        self.layers = Layers(blocks)
        self.share = config.auxiliary
        if self.share:
            self.auxiliary = AuxiliaryHead(blocks[self.halfway].outputs, config.width, config.classes)
        self.dropout = Dropout(config.dropout)
        self.head = Linear(channels, config.classes)
        self.training = True

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(images[b, c, h, w], labels[b]) -> (loss[], count[])."""
        images, labels = inputs
        x = self.stem(images)
        for block in self.layers.members[: self.halfway + 1]:
            x = block(x)
        middle = x
        for block in self.layers.members[self.halfway + 1 :]:
            x = block(x)
        logits = self.head(self.dropout(global_avg_pool(x, "features")))
        if not (self.share and self.training):
            return cross_entropy(logits, labels)
        main, count = cross_entropy(logits, labels, label="main")
        other, _ = cross_entropy(self.auxiliary(middle), labels, label="other")
        return joint_loss(main, {"other": (other, self.share)}), count


FAMILY = Family(
    "inception",
    InceptionConfig,
    {
        "inception-tiny": Preset(
            InceptionConfig(side=75, classes=7, width=1, pooled=(2,), inside=(3,), wide=1, dropout=0.25), 8
        ),
        "inception-v3": Preset(
            InceptionConfig(
                side=299, classes=1000, width=16, pooled=(2, 4, 4), inside=(8, 10, 10, 12), wide=2, dropout=0.5
            ),
            1600,
        ),
        "inception-v3-auxiliary": Preset(
            InceptionConfig(
                side=299,
                classes=1000,
                width=16,
                pooled=(2, 4, 4),
                inside=(8, 10, 10, 12),
                wide=2,
                dropout=0.5,
                auxiliary=0.3,
            ),
            1600,
        ),
    },
)
"""Batch: Szegedy et al., section 8, 50 replicas of 32; inception-tiny is ours."""
