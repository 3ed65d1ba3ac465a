"""Llama and Mixtral compute what their papers say: against losses written down anew, token by token."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from strategy.models import find_model
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import batches, on_one_device
from tests.support.reference import Array
from tests.support.small_plans import config_of, random_plan, request

Parameters = Mapping[str, Array]
TRAINING = Training(global_batch=2, dtype=DType.FLOAT64)


def first_loss(model: LlamaConfig | MixtralConfig) -> tuple[float, Parameters, dict[str, Array]]:
    """The loss of the first step on one device, the parameters before it, and its batch."""
    plan = random_plan(request(1, TRAINING, model=model), config_of(TRAINING), random.Random(0))
    start, _ = on_one_device(plan, steps=0)
    _, losses = on_one_device(plan, steps=1)
    return losses[0], start, batches(plan, 0)[0]


def test_llama() -> None:
    model = find_model("llama-tiny")
    assert isinstance(model, LlamaConfig)
    found, p, batch = first_loss(model)
    wanted = loss_of(
        model, p, batch, lambda q, x: gated(q["mlp.gate.weight"], q["mlp.up.weight"], q["mlp.down.weight"], x)
    )
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("choices", [1, 2, 4])
def test_mixtral(choices: int) -> None:
    model = find_model("mixtral-tiny")
    assert isinstance(model, MixtralConfig)
    found, p, batch = first_loss(replace(model, choices=choices))
    unbalanced: list[float] = []

    def experts(q: Parameters, x: Array) -> Array:
        odds = np.exp(x @ q["moe.router"])
        odds /= odds.sum(axis=1, keepdims=True)
        out, demand = np.zeros_like(x), np.zeros(model.experts)
        for t, row in enumerate(x):
            best = np.argsort(-odds[t])[:choices]
            demand[best] += 1 / choices / len(x)
            for e in best:
                gate, up, down = (q[f"moe.{name}"][e] for name in ("gate", "up", "down"))
                out[t] += odds[t, e] / odds[t, best].sum() * gated(gate, up, down, row)
        unbalanced.append(len(x) * model.experts * float(demand @ odds.mean(axis=0)))
        return out

    wanted = loss_of(model, p, batch, experts)
    wanted += model.balance * sum(unbalanced) / batch["ids"].size
    assert found == pytest.approx(wanted, rel=1e-12)


def loss_of(
    model: LlamaConfig | MixtralConfig,
    p: Parameters,
    batch: Mapping[str, Array],
    mlp: Callable[[Parameters, Array], Array],
) -> float:
    """Mean token loss, row by row."""
    losses = []
    for row, targets in zip(batch["ids"], batch["labels"], strict=True):
        x = p["token.weight"][row]
        for layer in range(model.layers):
            prefix = f"layers.{layer}."
            q = {name.removeprefix(prefix): array for name, array in p.items() if name.startswith(prefix)}
            x = x + attention(model, q, norm(x, q["norm1.weight"]))
            x = x + mlp(q, norm(x, q["norm2.weight"]))
        logits = norm(x, p["norm.weight"]) @ p["head.weight"]
        losses += [np.log(np.sum(np.exp(z))) - z[target] for z, target in zip(logits, targets, strict=True)]
    return float(np.mean(losses))


def attention(model: LlamaConfig | MixtralConfig, q: Parameters, x: Array) -> Array:
    """Causal attention, head by head; query head i reads key head i // group."""
    size, group = model.width // model.heads, model.heads // model.key_heads
    queries, keys, values = ((x @ q[f"attn.{name}.weight"]).reshape(len(x), -1, size) for name in "qkv")
    mixed = np.zeros((len(x), model.heads, size))
    for head in range(model.heads):
        for t in range(len(x)):
            query = turned(queries[t, head], t, model.rotary_base)
            scores = [query @ turned(keys[u, head // group], u, model.rotary_base) for u in range(t + 1)]
            weights = np.exp(np.array(scores) / math.sqrt(size))
            mixed[t, head] = weights @ values[: t + 1, head // group] / weights.sum()
    return np.asarray(mixed.reshape(len(x), model.width) @ q["attn.proj.weight"])


def turned(x: Array, position: int, base: float) -> Array:
    """Dims i and i + d / 2 as a complex number, times e^(i position base^(-2 i / d))."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * position * base ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag])


def gated(gate: Array, up: Array, down: Array, x: Array) -> Array:
    """SwiGLU."""
    z = x @ gate
    return np.asarray((z / (1 + np.exp(-z)) * (x @ up)) @ down)


def norm(x: Array, gain: Array) -> Array:
    """RMS norm over the last dim."""
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * gain)
