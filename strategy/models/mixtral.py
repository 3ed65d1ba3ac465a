"""Mixtral: a Llama of which every token uses two of eight gated MLPs per layer.

Jiang et al. 2024 (arXiv:2401.04088), section 2. The loss is the sum of the token losses, and a share of the balancing
losses of all layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Preset
from strategy.models.llama import attention_parameters, check_heads
from strategy.models.text import TextBatches
from strategy.nn.layers import Embedding, Linear, RmsNorm
from strategy.nn.losses import cross_entropy, joint_loss
from strategy.nn.module import Layers, Module
from strategy.nn.moe import Moe, Routing
from strategy.nn.tracer import Tensor
from strategy.nn.transformer import GroupedAttention


@dataclass(frozen=True, slots=True)
class MixtralConfig(TextBatches):
    """Dimensions of a Mixtral.

    Attributes:
        layers, width, heads, key_heads, sequence, vocabulary, rotary_base: as of a Llama.
        hidden: width inside an expert.
        experts: how many there are in a layer.
        choices: experts per token.
        capacity_factor: slots of an expert over those that an even demand would fill, per sample; 0 drops nothing.
        balance: share of the balancing losses in the loss.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    experts: int
    choices: int
    sequence: int
    vocabulary: int
    rotary_base: float = 1000000.0
    capacity_factor: float = 0.0
    balance: float = 0.02

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "key_heads", "hidden", "experts", "choices", "sequence", "vocabulary"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"Mixtral: {name}", got=getattr(self, name), expected="at least 1")
        check_heads("Mixtral", self.width, self.heads, self.key_heads)
        if self.choices > self.experts:
            raise InputError("more choices than experts", where="Mixtral", got=(self.choices, self.experts))
        if not 0 <= self.capacity_factor < math.inf:
            raise InputError("no capacity", where="Mixtral", got=self.capacity_factor, expected="a finite figure >= 0")
        if not 0 < self.balance < math.inf:
            raise InputError("no share", where="Mixtral: balance", got=self.balance, expected="a finite figure > 0")

    @property
    def parameters(self) -> int:
        """Number of trained elements, those of all experts included."""
        h = self.width
        experts = h * self.experts + self.experts * 3 * h * self.hidden
        layer = attention_parameters(h, self.heads, self.key_heads) + experts + 2 * h
        return 2 * self.vocabulary * h + self.layers * layer + h

    def module(self) -> Module:
        """The model, to be traced."""
        return Mixtral(self)


class MixtralLayer(Module):
    """Pre-norm transformer layer with a mixture of experts; a sample is a group of tokens."""

    def __init__(self, config: MixtralConfig) -> None:
        c, std = config, 0.02 / math.sqrt(2 * config.layers)
        self.norm1 = RmsNorm(c.width)
        self.attn = GroupedAttention(c.width, c.heads, c.key_heads, rotary_base=c.rotary_base, std_out=std)
        self.norm2 = RmsNorm(c.width)
        self.moe = Moe(
            c.width,
            c.hidden,
            c.experts,
            routing=Routing(c.choices),
            capacity_factor=c.capacity_factor or None,
            gated=True,
            std_out=std,
        )

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """[b, s, w] -> ([b, s, w], balancing loss [])."""
        x = inputs[0]
        x = x.apply("residual1", "add", self.attn(self.norm1(x)))
        mixed, balance = self.moe(self.norm2(x))
        return x.apply("residual2", "add", mixed), balance


class Mixtral(Module):
    """Token ids and labels -> summed loss and count."""

    def __init__(self, config: MixtralConfig) -> None:
        self.token = Embedding(config.vocabulary, config.width)
        self.layers = Layers([MixtralLayer(config) for _ in range(config.layers)])
        self.norm = RmsNorm(config.width)
        self.head = Linear(config.width, config.vocabulary, bias=False)
        self.balance = config.balance

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(ids[b, s], labels[b, s]) -> (loss[], token count[])."""
        ids, labels = inputs
        x, balances = self.token(ids), []
        for layer in self.layers.members:
            x, balance = layer(x)
            balances.append(balance)
        token_loss, count = cross_entropy(self.head(self.norm(x)), labels, label="token_loss")
        balance = ids.tracer.apply("balance", "add_n", balances)[0]
        return joint_loss(token_loss, {"balance": (balance, self.balance)}), count


FAMILY = Family(
    "mixtral",
    MixtralConfig,
    {
        "mixtral-tiny": Preset(MixtralConfig(2, 8, 2, 1, 12, 4, 2, 6, 256), 8),
        "mixtral-8x7b": Preset(MixtralConfig(32, 4096, 32, 8, 14336, 8, 2, 32768, 32000), 256),
        "mixtral-8x22b": Preset(MixtralConfig(56, 6144, 48, 8, 16384, 8, 2, 65536, 32768), 256),
    },
)
"""The authors do not tell their batch; mixtral-tiny is ours."""
