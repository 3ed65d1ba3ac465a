"""A transformer layer as Megatron keeps it: attention in steps, with its scores as tensors, and three kinds of dropout.

It is what the published figures of activation memory speak of (Korthikanti et al. 2022, arXiv:2205.05198, figure 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.models.text import TextBatches
from strategy.nn.layers import Dropout, LayerNorm, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor


@dataclass(frozen=True, slots=True)
class MegatronConfig(TextBatches):
    """Dimensions, and the rate of all dropouts."""

    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    dropout: float = 0.1

    @property
    def parameters(self) -> int:
        """Not told: nothing here depends on it."""
        return 0

    def module(self) -> Module:
        """The model, to be traced."""
        return _Megatron(self)


class _Attention(Module):
    def __init__(self, config: MegatronConfig) -> None:
        self.heads = config.heads
        self.q, self.k, self.v = (Linear(config.width, config.width) for _ in range(3))
        self.dropout = Dropout(config.dropout)
        self.proj = Linear(config.width, config.width)

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        b, s, w = x.shape
        split = (b, s, self.heads, w // self.heads)
        q, k, v = (
            linear(x)
            .reshape(f"{name}.heads", split)
            .apply(f"{name}.by_head", "transpose", attrs={"perm": (0, 2, 1, 3)})
            for name, linear in (("q", self.q), ("k", self.k), ("v", self.v))
        )
        scores = q.apply("scores", "batch_matmul", k, attrs={"transpose_a": 0, "transpose_b": 1})
        scaled = scores.apply("scaled", "scale", attrs={"factor": 1 / math.sqrt(w // self.heads)})
        weights: Tensor = self.dropout(scaled.apply("softmax", "softmax"))
        mixed = weights.apply("mixture", "batch_matmul", v, attrs={"transpose_a": 0, "transpose_b": 0})
        merged = mixed.apply("by_row", "transpose", attrs={"perm": (0, 2, 1, 3)}).reshape("merged", (b, s, w))
        projected: Tensor = self.proj(merged)
        return projected


class _Mlp(Module):
    def __init__(self, config: MegatronConfig) -> None:
        self.fc1 = Linear(config.width, 4 * config.width)
        self.fc2 = Linear(4 * config.width, config.width)

    def forward(self, *inputs: Tensor) -> Tensor:
        hidden: Tensor = self.fc2(self.fc1(inputs[0]).apply("gelu", "gelu"))
        return hidden


class _Block(Module):
    def __init__(self, config: MegatronConfig) -> None:
        self.norm1, self.norm2 = LayerNorm(config.width), LayerNorm(config.width)
        self.attn, self.mlp = _Attention(config), _Mlp(config)
        self.dropout1, self.dropout2 = Dropout(config.dropout), Dropout(config.dropout)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        x = x.apply("residual1", "add", self.dropout1(self.attn(self.norm1(x))))
        return x.apply("residual2", "add", self.dropout2(self.mlp(self.norm2(x))))


class _Megatron(Module):
    def __init__(self, config: MegatronConfig) -> None:
        self.token = Parameter((config.vocabulary, config.width), "normal(0.02)")
        self.layers = Layers([_Block(config) for _ in range(config.layers)])
        self.norm = LayerNorm(config.width)
        self.head = Linear(config.width, config.vocabulary)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ids, labels = inputs
        x = self.parameter("token", ids).apply("embed", "gather", ids, attrs={"axis": 0})
        return cross_entropy(self.head(self.norm(self.layers(x))), labels)
