"""Part of acceptance: the same models in PyTorch on the same device, from the same weights, on the same text.

Eager with flash attention and a fused AdamW, and compiled; mixed precision by autocast, as PyTorch's own tutorials have
it: parameters and their state in float32, products in bfloat16.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from executor.data.text import sample_batch, standard_library
from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import GPT, LLAMA_1B, LLAMA_BATCH, folder_of_plans, make_plan, train
from executor.gpu_acceptance.outcome import Figures, LeftOut, PartFailed
from executor.runtime.initialize import initial_piece
from strategy.base.files import write_atomic
from strategy.graph.graph import Role
from strategy.graph.ops.norm import EPSILON
from strategy.plan.plan import Plan, read_plan

_STEPS, _TIMED = 60, 20
"""Of a training, and the last of them, which are timed: ours are recorded act by act before."""
_COMPARED = 50
_LOSSES_ALIKE = 0.01
_RECIPE = ("lr=0.0003", "warm_up=30")
"""Without a warm-up the first steps of Adam throw losses about, and a difference of the last bit grows."""


def pytorch(bench: Bench) -> Figures:
    """Tokens in a second, the most memory, and losses: ours at least as many, no more, and the same."""
    try:
        import torch
    except ImportError as error:
        raise LeftOut(f"PyTorch is not installed: {error}") from error
    if not torch.cuda.is_available():
        raise LeftOut("PyTorch finds no device")
    figures: dict[str, Any] = {"version": torch.__version__}
    problems: list[str] = []
    with folder_of_plans() as folder:
        config = folder / "llama-1b.json"
        write_atomic(config, json.dumps(LLAMA_1B))
        for model, batch, make in ((GPT[0], GPT[1], _gpt), (str(config), LLAMA_BATCH, _llama)):
            name = Path(model).stem
            plan = make_plan(bench, folder, model, {"dp": 1, "tp": 1, "pp": 1}, batch=batch, recipe=_RECIPE)
            ours, tokens = _ours(bench, plan), read_plan(plan).tokens_per_step
            theirs = {how: _theirs(torch, read_plan(plan), make, how) for how in ("eager", "compiled")}
            for one in (ours, *theirs.values()):
                one["tokens_per_s"] = tokens / one["step_s"]
            figures[name] = {"ours": ours, **theirs}
            problems += [f"{name}: {problem}" for problem in _behind(ours, theirs["eager"])]
    if problems:
        raise PartFailed("; ".join(problems), figures)
    return figures


def _behind(ours: Mapping[str, Any], eager: Mapping[str, Any]) -> list[str]:
    """What is worse than PyTorch's."""
    found = []
    if ours["tokens_per_s"] < eager["tokens_per_s"]:
        found.append(f"{ours['tokens_per_s']:.0f} tokens/s against {eager['tokens_per_s']:.0f}")
    if ours["peak_bytes"] > eager["peak_bytes"]:
        found.append(f"{ours['peak_bytes'] / 1e9:.2f} GB against {eager['peak_bytes'] / 1e9:.2f}")
    pairs = list(zip(ours["losses"], eager["losses"], strict=True))[:_COMPARED]
    off = max(abs(one - other) / other for one, other in pairs)
    if not off <= _LOSSES_ALIKE:
        found.append(f"losses differ by up to {off:.2%}")
    return found


def _ours(bench: Bench, plan: Path) -> dict[str, Any]:
    reports, summary = train(bench, plan, steps=_STEPS)
    times = sorted(report["step_time_s"] for report in reports[-_TIMED:])
    return {
        "step_s": times[len(times) // 2],
        "peak_bytes": max(summary["register_bytes"]) + max(summary["scratch_bytes"]),
        "losses": [report["loss"] for report in reports],
    }


def _theirs(torch: Any, plan: Plan, make: Any, how: str) -> dict[str, Any]:
    """The mean of the last steps, which the host does not wait for one by one."""
    torch.cuda.empty_cache()
    weights = {
        value.name: torch.from_numpy(
            initial_piece(value, tuple((0, size) for size in value.spec.shape), seed=plan.training.seed)
        )
        for value in plan.graph.with_role(Role.VARIABLE)
    }
    model = make(torch, weights).cuda()
    torch.cuda.reset_peak_memory_stats()
    called = torch.compile(model) if how == "compiled" else model
    recipe, parameters = plan.training, list(model.parameters())
    matrices, vectors = ([one for one in parameters if (one.ndim > 1) is wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    betas = recipe.beta1, recipe.beta2
    rule = torch.optim.AdamW(groups, lr=recipe.lr, betas=betas, eps=recipe.epsilon, fused=True)
    batches = [_batch(torch, plan, step) for step in range(_STEPS)]
    losses = []
    for step, (ids, labels) in enumerate(batches):
        if step == _STEPS - _TIMED:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            logits = called(ids)
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, recipe.max_norm)
        for group in rule.param_groups:
            group["lr"] = recipe.lr * min(1.0, (step + 1) / recipe.warm_up)
        rule.step()
        rule.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    torch.cuda.synchronize()
    return {
        "step_s": (time.perf_counter() - begin) / _TIMED,
        "peak_bytes": float(torch.cuda.max_memory_allocated()),
        "losses": [float(loss) for loss in losses],
    }


def _batch(torch: Any, plan: Plan, step: int) -> tuple[Any, Any]:
    rows = plan.training.global_batch
    seq = plan.tokens_per_step // rows
    found = sample_batch(standard_library().train, seed=plan.training.seed, step=step, rows=(0, rows), seq=seq)
    return tuple(torch.from_numpy(np.ascontiguousarray(array, np.int64)).cuda() for array in found)


def _linear(torch: Any, weights: Mapping[str, Any], name: str) -> Any:
    """Ours is [in, out], PyTorch's [out, in]."""
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    found = torch.nn.Linear(*weight.shape, bias=bias is not None)
    with torch.no_grad():
        found.weight.copy_(weight.T)
        if bias is not None:
            found.bias.copy_(bias)
    return found


def _attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """Of [b, s, heads, width]; key heads that are shared are repeated by PyTorch."""
    nn = torch.nn
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(2)


def _depth(weights: Mapping[str, Any]) -> int:
    return sum(f"layers.{index}.norm1.weight" in weights for index in range(len(weights)))


def _gpt(torch: Any, weights: Mapping[str, Any]) -> Any:
    """GPT-2 (Radford et al. 2019): packed heads, GELU by tanh, the embedding's rows as classes."""
    nn = torch.nn

    def norm(name: str) -> Any:
        found = nn.LayerNorm(weights[f"{name}.weight"].shape[0], eps=EPSILON)
        found.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
        return found

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, name: str) -> None:
            super().__init__()
            self.norm1, self.norm2 = norm(f"{name}.norm1"), norm(f"{name}.norm2")
            self.qkv, self.proj = (_linear(torch, weights, f"{name}.attn.{part}") for part in ("qkv", "proj"))
            self.fc1, self.fc2 = (_linear(torch, weights, f"{name}.mlp.{part}") for part in ("fc1", "fc2"))

        def forward(self, x: Any) -> Any:
            b, s, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, s, d // 64, 3, 64).unbind(3)
            x = x + self.proj(_attention(torch, q, k, v))
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = (nn.Parameter(weights[name]) for name in ("token", "position"))
            self.layers = nn.Sequential(*(Layer(f"layers.{index}") for index in range(_depth(weights))))
            self.norm = norm("norm")

        def forward(self, ids: Any) -> Any:
            x = nn.functional.embedding(ids, self.token) + self.position[: ids.shape[1]]
            return nn.functional.linear(self.norm(self.layers(x.bfloat16())), self.token)

    return Model()


def _llama(torch: Any, weights: Mapping[str, Any]) -> Any:
    """Llama (Meta 2024) in the shape of `LLAMA_1B`."""
    nn = torch.nn
    dims: Mapping[str, Any] = LLAMA_1B
    heads, keys = dims["num_attention_heads"], dims["num_key_value_heads"]
    width = dims["hidden_size"] // heads
    rates = dims["rope_theta"] ** -(torch.arange(0, width, 2, device="cuda") / width)
    angles = torch.outer(torch.arange(dims["max_position_embeddings"], device="cuda"), rates)[:, None]
    cosine, sine = angles.cos().bfloat16(), angles.sin().bfloat16()

    class Norm(nn.RMSNorm):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            """With the weight in what x is in, for which alone PyTorch has one kernel."""
            return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)

    def norm(name: str) -> Any:
        found = Norm(weights[f"{name}.weight"].shape[0], eps=EPSILON)
        found.load_state_dict({"weight": weights[f"{name}.weight"]})
        return found

    def turned(x: Any) -> Any:
        (one, other), s = x.chunk(2, -1), x.shape[1]
        c, n = cosine[:s], sine[:s]
        return torch.cat((one * c - other * n, other * c + one * n), -1)

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, name: str) -> None:
            super().__init__()
            self.norm1, self.norm2 = norm(f"{name}.norm1"), norm(f"{name}.norm2")
            self.q, self.k, self.v, self.proj = (
                _linear(torch, weights, f"{name}.attn.{part}") for part in ("q", "k", "v", "proj")
            )
            self.gate, self.up, self.down = (
                _linear(torch, weights, f"{name}.mlp.{part}") for part in ("gate", "up", "down")
            )

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            q, k, v = (
                one(y).unflatten(-1, (count, width)) for one, count in ((self.q, heads), (self.k, keys), (self.v, keys))
            )
            x = x + self.proj(_attention(torch, turned(q), turned(k), v))
            y = self.norm2(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(weights["token.weight"])
            self.layers = nn.Sequential(*(Layer(f"layers.{index}") for index in range(_depth(weights))))
            self.norm = norm("norm")

        def forward(self, ids: Any) -> Any:
            x = nn.functional.embedding(ids, self.token).bfloat16()
            return nn.functional.linear(self.norm(self.layers(x)), self.token)

    return Model()
