"""GPT-2 and GPT-3: decoder-only transformers with learned positions and tied embeddings.

Radford et al. 2019; Brown et al. 2020 (arXiv:2005.14165), table 2.1. The loss is the sum of the token losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.text import TextBatches
from strategy.nn.layers import LayerNorm
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.nn.transformer import FeedForward, PreNorm, SelfAttention


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


class Gpt(Module):
    """Token ids and labels -> summed loss."""

    def __init__(self, config: GptConfig) -> None:
        self.token = Parameter((config.vocabulary, config.width), "normal(0.02)")
        self.position = Parameter((config.sequence, config.width), "normal(0.01)")
        width, std = config.width, 0.02 / math.sqrt(2 * config.layers)
        blocks = [
            PreNorm(
                LayerNorm(width),
                SelfAttention(width, config.heads, causal=True, std_out=std),
                LayerNorm(width),
                FeedForward(width, 4 * width, std_out=std),
            )
            for _ in range(config.layers)
        ]
        self.layers = Layers(blocks)
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
        "mt-nlg-530b": Preset(GptConfig(layers=105, width=20480, heads=128, sequence=2048, vocabulary=51200), 1920),
        "gpt-1t": Preset(GptConfig(layers=128, width=25600, heads=160, sequence=2048, vocabulary=51200), 3072),
    },
)
"""Batches: Radford et al. 2019; Narayanan et al. 2021 (arXiv:2104.04473), table 1; Smith et al. 2022
(arXiv:2201.11990), section 3; gpt-tiny is ours."""
