"""What layers of transformers are made of: attention, MLPs, and the block that adds both to what it reads.

`std_out` is the spread at the start of the maps whose results are added to the residual stream.
"""

from __future__ import annotations

from strategy.base.errors import InputError
from strategy.nn.layers import Linear, attention, gated, packed_attention, rotary
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor

ACTIVATIONS = ("silu", "gelu", "gelu_exact", "relu")
"""Kinds of ops that a description may name as its activation."""


def check_activation(model: str, activation: str) -> None:
    """Raise InputError unless an activation is known."""
    if activation not in ACTIVATIONS:
        where, expected = f"{model}: activation", ", ".join(ACTIVATIONS)
        raise InputError("unknown word", where=where, got=activation, expected=expected)


class SelfAttention(Module):
    """Self-attention; the projection's columns are ordered head, (query, key, value), dim."""

    def __init__(self, width: int, heads: int, *, causal: bool, std_out: float = 0.02) -> None:
        self.heads = heads
        self.causal = causal
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width, std=std_out)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        b, s, w = x.shape
        packed = self.qkv(x).reshape("heads", (b, s, self.heads, 3, w // self.heads))
        mixed = packed_attention(packed, "attention", causal=self.causal)
        projected: Tensor = self.proj(mixed.reshape("merge", (b, s, w)))
        return projected


class GroupedAttention(Module):
    """Causal self-attention, several heads of queries to one of keys and values (Ainslie et al. 2023)."""

    def __init__(self, width: int, heads: int, key_heads: int, *, rotary_base: float, std_out: float) -> None:
        size = width // heads
        self.heads = heads
        self.key_heads = key_heads
        self.rotary_base = rotary_base
        self.q = Linear(width, width, bias=False)
        self.k = Linear(width, key_heads * size, bias=False)
        self.v = Linear(width, key_heads * size, bias=False)
        self.proj = Linear(width, width, std=std_out, bias=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        b, s, w = x.shape
        size = w // self.heads
        q = self.q(x).reshape("q_heads", (b, s, self.heads, size))
        k = self.k(x).reshape("k_heads", (b, s, self.key_heads, size))
        v = self.v(x).reshape("v_heads", (b, s, self.key_heads, size))
        q, k = rotary(q, "q_turned", base=self.rotary_base), rotary(k, "k_turned", base=self.rotary_base)
        mixed = attention(q, k, v, "attention", causal=True)
        projected: Tensor = self.proj(mixed.reshape("merge", (b, s, w)))
        return projected


class FeedForward(Module):
    """Two linear maps with a GELU between, or another activation."""

    def __init__(self, width: int, hidden: int, *, std_out: float = 0.02, activation: str = "gelu") -> None:
        self.activation = activation
        self.fc1 = Linear(width, hidden)
        self.fc2 = Linear(hidden, width, std=std_out)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        hidden: Tensor = self.fc2(self.fc1(inputs[0]).apply("gelu", self.activation))
        return hidden


class GatedMlp(Module):
    """SwiGLU: a hidden layer that another one gates."""

    def __init__(self, width: int, hidden: int, *, std_out: float) -> None:
        self.gate = Linear(width, hidden, bias=False)
        self.up = Linear(width, hidden, bias=False)
        self.down = Linear(hidden, width, std=std_out, bias=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        hidden: Tensor = self.down(gated(self.gate(x), self.up(x), "hidden"))
        return hidden


class PreNorm(Module):
    """A layer of a transformer: attention, then an MLP, each of what a norm makes of the residual stream."""

    def __init__(self, norm1: Module, attn: Module, norm2: Module, mlp: Module) -> None:
        self.norm1 = norm1
        self.attn = attn
        self.norm2 = norm2
        self.mlp = mlp

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        x = inputs[0]
        x = x.apply("residual1", "add", self.attn(self.norm1(x)))
        return x.apply("residual2", "add", self.mlp(self.norm2(x)))
