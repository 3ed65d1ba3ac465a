"""Llama: decoder-only transformers with rotary positions, RMS norms, SwiGLU and grouped queries, without biases.

Touvron et al. 2023 (arXiv:2307.09288), section 2.2; Dubey et al. 2024 (arXiv:2407.21783), table 3. The loss is the sum
of the token losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.text import TextBatches
from strategy.nn.layers import Embedding, Linear, RmsNorm
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor
from strategy.nn.transformer import GatedMlp, GroupedAttention, PreNorm


@dataclass(frozen=True, slots=True)
class LlamaConfig(TextBatches):
    """Dimensions of a Llama: `heads` of queries read `key_heads` of keys and values; `hidden` is the MLP's width."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    sequence: int
    vocabulary: int
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "key_heads", "hidden", "sequence", "vocabulary"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"Llama: {name}", got=getattr(self, name), expected="at least 1")
        check_heads("Llama", self.width, self.heads, self.key_heads)
        if self.rotary_base <= 1:
            raise InputError("not a base", where="Llama: rotary_base", got=self.rotary_base, expected="above 1")

    @property
    def parameters(self) -> int:
        """Number of trained elements: 2 V h + l (2 h^2 + 2 h k + 3 h m + 2 h) + h, where k is the keys' width."""
        h, m = self.width, self.hidden
        layer = attention_parameters(h, self.heads, self.key_heads) + 3 * h * m + 2 * h
        return 2 * self.vocabulary * h + self.layers * layer + h

    def module(self) -> Module:
        """The model, to be traced."""
        return Llama(self)


def check_heads(family: str, width: int, heads: int, key_heads: int) -> None:
    """Raise InputError unless heads divide the width into even parts, and key heads divide the heads."""
    if width % heads or width // heads % 2:
        expected = "a multiple of the heads, and heads of an even width"
        raise InputError("the width does not divide into heads", where=family, got=(width, heads), expected=expected)
    if heads % key_heads:
        raise InputError("the heads are no multiple of the key heads", where=family, got=(heads, key_heads))


def attention_parameters(width: int, heads: int, key_heads: int) -> int:
    """Weights of `GroupedAttention`: queries and output, keys and values."""
    return 2 * width * width + 2 * width * (width // heads) * key_heads


class Llama(Module):
    """Token ids and labels -> summed loss and count."""

    def __init__(self, config: LlamaConfig) -> None:
        self.token = Embedding(config.vocabulary, config.width)
        c, std = config, 0.02 / math.sqrt(2 * config.layers)
        blocks = [
            PreNorm(
                RmsNorm(c.width),
                GroupedAttention(c.width, c.heads, c.key_heads, rotary_base=c.rotary_base, std_out=std),
                RmsNorm(c.width),
                GatedMlp(c.width, c.hidden, std_out=std),
            )
            for _ in range(c.layers)
        ]
        self.layers = Layers(blocks)
        self.norm = RmsNorm(config.width)
        self.head = Linear(config.width, config.vocabulary, bias=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(ids[b, s], labels[b, s]) -> (loss[], token count[])."""
        ids, labels = inputs
        return cross_entropy(self.head(self.norm(self.layers(self.token(ids)))), labels)


FAMILY = Family(
    "llama",
    LlamaConfig,
    {
        "llama-tiny": Preset(LlamaConfig(2, 16, 4, 2, 24, 8, 256), 8),
        "llama2-7b": Preset(LlamaConfig(32, 4096, 32, 32, 11008, 4096, 32000), 1024),
        "llama2-70b": Preset(LlamaConfig(80, 8192, 64, 8, 28672, 4096, 32000), 1024),
        "llama3-8b": Preset(LlamaConfig(32, 4096, 32, 8, 14336, 8192, 128256, 500000.0), 1024),
        "llama3-405b": Preset(LlamaConfig(126, 16384, 128, 8, 53248, 8192, 128256, 500000.0), 2048),
    },
)
"""Batches of 4 Mi tokens (Llama 2), of 8 and 16 Mi (Llama 3, at its full context); llama-tiny is ours."""
