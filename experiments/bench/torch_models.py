"""The models of `sbplan bench cpu` in PyTorch, as a user would write them: nn.Linear, SDPA, modules called as ours are.

Weights start as ours do, by name; those of nn.Linear are kept transposed, as PyTorch wants them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from strategy.models.base import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig


class _PackedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        b, s, w = x.shape
        q, k, v = self.qkv(x).view(b, s, self.heads, 3, w // self.heads).permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(b, s, w))


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class _PreNorm(nn.Module):
    def __init__(self, norm1: nn.Module, attn: nn.Module, norm2: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = norm1, attn, norm2, mlp

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Gpt(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.width
        self.token = nn.Parameter(torch.empty(config.vocabulary, width))
        self.position = nn.Parameter(torch.empty(config.sequence, width))
        self.layers = nn.Sequential(
            *(
                _PreNorm(
                    nn.LayerNorm(width), _PackedAttention(width, config.heads), nn.LayerNorm(width), _FeedForward(width)
                )
                for _ in range(config.layers)
            )
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.norm(self.layers(F.embedding(ids, self.token) + self.position))
        return F.cross_entropy(F.linear(x, self.token).flatten(0, 1), labels.flatten())


class _GroupedAttention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, size = config.width, config.head_width
        self.heads, self.key_heads = config.heads, config.key_heads
        self.q = nn.Linear(width, config.heads * size, bias=False)
        self.k = nn.Linear(width, config.key_heads * size, bias=False)
        self.v = nn.Linear(width, config.key_heads * size, bias=False)
        self.proj = nn.Linear(config.heads * size, width, bias=False)
        angles = torch.arange(config.sequence)[:, None] * config.rotary_base ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cosine", torch.cat([angles.cos()] * 2, 1), persistent=False)
        self.register_buffer("sine", torch.cat([-angles.sin(), angles.sin()], 1), persistent=False)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = (
            part.view(b, s, heads, -1).transpose(1, 2)
            for part, heads in ((self.q(x), self.heads), (self.k(x), self.key_heads), (self.v(x), self.key_heads))
        )
        mixed = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True)
        return self.proj(mixed.transpose(1, 2).reshape(b, s, -1))

    def _turned(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat([second, first], -1) * self.sine


class _GatedFeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class _Decoder(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, epsilon = config.width, config.epsilon
        self.token = nn.Embedding(config.vocabulary, width)
        self.layers = nn.Sequential(
            *(
                _PreNorm(
                    nn.RMSNorm(width, epsilon),
                    _GroupedAttention(config),
                    nn.RMSNorm(width, epsilon),
                    _GatedFeedForward(width, config.hidden),
                )
                for _ in range(config.layers)
            )
        )
        self.norm = nn.RMSNorm(width, epsilon)
        self.head = nn.Linear(width, config.vocabulary, bias=False)

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.norm(self.layers(self.token(ids)))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def torch_model(config: Model, weights: dict[str, Any]) -> nn.Module:
    """(ids, labels) -> mean loss, with the weights of ours."""
    if isinstance(config, GptConfig):
        model: nn.Module = _Gpt(config)
    else:
        assert isinstance(config, DecoderConfig)
        model = _Decoder(config)
    turned = _transposed(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            given = torch.from_numpy(weights.pop(name))
            parameter.copy_(given.T if name in turned else given)
    assert not weights, f"not in the model: {sorted(weights)}"
    return model


def _transposed(model: nn.Module) -> set[str]:
    """The parameters that PyTorch keeps transposed."""
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def parameters_as_ours(model: nn.Module) -> dict[str, Any]:
    """Name -> array, as ours lie."""
    turned = _transposed(model)
    return {
        name: (parameter.detach().T if name in turned else parameter.detach()).numpy().copy()
        for name, parameter in model.named_parameters()
    }
