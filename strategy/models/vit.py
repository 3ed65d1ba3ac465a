"""ViT: transformers over patches of images, read off at a class token.

Dosovitskiy et al. 2021 (arXiv:2010.11929), section 3.1 and table 1. The loss is the sum of the images' cross-entropies.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.images import ImageBatches
from strategy.nn.layers import Conv2d, LayerNorm, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.nn.transformer import FeedForward, PreNorm, SelfAttention, check_activation


@dataclass(frozen=True, slots=True)
class VitConfig(ImageBatches):
    """Dimensions of a ViT: square images of `side` pixels a side in square patches of `patch`.

    `activation` is that of the MLPs, `epsilon` that of every norm: 1e-6 in the authors' code.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    side: int
    patch: int
    classes: int
    activation: str = "gelu"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "hidden", "side", "patch", "classes"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"ViT: {name}", got=getattr(self, name), expected="at least 1")
        if self.width % self.heads:
            raise InputError("the width is no multiple of the heads", where="ViT", got=(self.width, self.heads))
        check_activation("ViT", self.activation)
        if not 0 < self.epsilon < 1:
            raise InputError("not a small figure", where="ViT: epsilon", got=self.epsilon, expected="between 0 and 1")
        if self.side % self.patch:
            raise InputError("the image is no multiple of the patch", where="ViT", got=(self.side, self.patch))

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.side // self.patch) ** 2

    @property
    def parameters(self) -> int:
        """Patch embedding, class token, positions, layers, the last norm, and the head."""
        h, m = self.width, self.hidden
        ends = (3 * self.patch**2 + 1) * h + h + (self.patches + 1) * h + 2 * h + (h + 1) * self.classes
        return ends + self.layers * (4 * h * h + 4 * h + 2 * h * m + m + h + 4 * h)

    def module(self) -> Module:
        """The model, to be traced."""
        return Vit(self)


class Patches(Module):
    """A vector per patch, the class token before them, and positions."""

    def __init__(self, config: VitConfig) -> None:
        size = (config.patch, config.patch)
        self.conv = Conv2d(3, config.width, size, stride=size)
        self.class_token = Parameter((1, 1, config.width))
        self.position = Parameter((config.patches + 1, config.width), "normal(0.02)")

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, 3, i, i] -> [b, 1 + patches, w]."""
        (images,) = inputs
        x: Tensor = self.conv(images)
        b, w, p, q = x.shape
        x = x.reshape("patches", (b, w, p * q)).transpose("patch_first", (0, 2, 1))
        first = self.parameter("class_token", x).apply("class_tokens", "expand", attrs={"shape": (b, 1, w)})
        joined = first.apply("tokens", "concat", x, attrs={"axis": 1})
        return joined.apply("add_position", "add", self.parameter("position", x))


class Vit(Module):
    """Images and classes -> summed loss and count."""

    def __init__(self, config: VitConfig) -> None:
        self.patches = Patches(config)
        blocks = [
            PreNorm(
                LayerNorm(config.width, epsilon=config.epsilon),
                SelfAttention(config.width, config.heads, causal=False),
                LayerNorm(config.width, epsilon=config.epsilon),
                FeedForward(config.width, config.hidden, activation=config.activation),
            )
            for _ in range(config.layers)
        ]
        self.layers = Layers(blocks)
        self.norm = LayerNorm(config.width, epsilon=config.epsilon)
        self.head = Linear(config.width, config.classes)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(images[b, 3, i, i], labels[b]) -> (loss[], count[])."""
        images, labels = inputs
        x = self.layers(self.patches(images))
        b, _, w = x.shape
        first = x.apply("first", "slice", attrs={"begin": (0, 0, 0), "end": (b, 1, w)}).reshape("class", (b, w))
        return cross_entropy(self.head(self.norm(first)), labels)


FAMILY = Family(
    "vit",
    VitConfig,
    {
        "vit-tiny": Preset(VitConfig(2, 16, 2, 32, 8, 4, 5), 8),
        "vit-b16": Preset(VitConfig(12, 768, 12, 3072, 224, 16, 1000), 4096),
        "vit-l16": Preset(VitConfig(24, 1024, 16, 4096, 224, 16, 1000), 4096),
    },
)
"""Batches as in section 4.1; vit-tiny is ours."""
