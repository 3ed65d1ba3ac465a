"""GPT-2 and GPT-3: decoder-only transformers with learned positions and tied embeddings.

Radford et al. 2019; Brown et al. 2020 (arXiv:2005.14165), table 2.1. The loss is the sum of the token losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.text import TextBatches
from strategy.nn.layers import LayerNorm, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor


@dataclass(frozen=True, slots=True)
class GptConfig(TextBatches):
    """Dimensions of a GPT."""

    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "sequence", "vocabulary"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"GPT: {name}", got=getattr(self, name), expected="at least 1")
        if self.width % self.heads:
            raise InputError("the width is no multiple of the heads", where="GPT", got=(self.width, self.heads))

    @property
    def parameters(self) -> int:
        """Number of trained elements: 12 l h^2 (1 + 13 / (12 h)) + (V + S) h + 2 h."""
        h = self.width
        return self.layers * (12 * h * h + 13 * h) + (self.vocabulary + self.sequence) * h + 2 * h

    def module(self) -> Module:
        """The model, to be traced."""
        return Gpt(self)


class Attention(Module):
    """Causal self-attention; the projection's columns are ordered head, (query, key, value), dim."""

    def __init__(self, config: GptConfig) -> None:
        self.heads = config.heads
        self.qkv = Linear(config.width, 3 * config.width)
        self.proj = Linear(config.width, config.width, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        b, s, w = x.shape
        packed = self.qkv(x).reshape("heads", (b, s, self.heads, 3, w // self.heads))
        mixed = x.tracer.apply("attention", "attention", (packed,), {"causal": 1}, labels=("lse",))[0]
        projected: Tensor = self.proj(mixed.reshape("merge", (b, s, w)))
        return projected


class Mlp(Module):
    """Two linear maps with a GELU between."""

    def __init__(self, config: GptConfig) -> None:
        self.fc1 = Linear(config.width, 4 * config.width)
        self.fc2 = Linear(4 * config.width, config.width, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        hidden: Tensor = self.fc2(self.fc1(inputs[0]).apply("gelu", "gelu"))
        return hidden


class Block(Module):
    """Pre-norm transformer layer."""

    def __init__(self, config: GptConfig) -> None:
        self.norm1 = LayerNorm(config.width)
        self.attn = Attention(config)
        self.norm2 = LayerNorm(config.width)
        self.mlp = Mlp(config)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        x = inputs[0]
        x = x.apply("residual1", "add", self.attn(self.norm1(x)))
        return x.apply("residual2", "add", self.mlp(self.norm2(x)))


class Gpt(Module):
    """Token ids and labels -> summed loss."""

    def __init__(self, config: GptConfig) -> None:
        self.token = Parameter((config.vocabulary, config.width), "normal(0.02)")
        self.position = Parameter((config.sequence, config.width), "normal(0.01)")
        self.layers = Layers([Block(config) for _ in range(config.layers)])
        self.norm = LayerNorm(config.width)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(ids[b, s], labels[b, s]) -> (loss[], token count[])."""
        ids, labels = inputs
        token = self.parameter("token", ids)
        x = token.apply("embed", "gather", ids, attrs={"axis": 0}).apply(
            "embed_position", "add", self.parameter("position", ids)
        )
        x = self.norm(self.layers(x))
        logits = x.apply("logits", "matmul_nt", token)
        return cross_entropy(logits, labels)


FAMILY = Family(
    "gpt",
    GptConfig,
    {
        "gpt-tiny": Preset(GptConfig(layers=4, width=128, heads=4, sequence=128, vocabulary=256), 8),
        "gpt2-small": Preset(GptConfig(layers=12, width=768, heads=12, sequence=1024, vocabulary=50257), 512),
        "gpt2-345m": Preset(GptConfig(layers=24, width=1024, heads=16, sequence=1024, vocabulary=50257), 512),
        "gpt3-175b": Preset(GptConfig(layers=96, width=12288, heads=96, sequence=2048, vocabulary=50257), 1536),
        "gpt-1t": Preset(GptConfig(layers=128, width=25600, heads=160, sequence=2048, vocabulary=51200), 3072),
    },
)
"""Batches: Radford et al. 2019; Narayanan et al. 2021 (arXiv:2104.04473), table 1; gpt-tiny is ours."""
