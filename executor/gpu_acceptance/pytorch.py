"""Part of acceptance: the same model in PyTorch on the same device, eager with flash attention and a fused AdamW."""

from __future__ import annotations

import math
import time
from typing import Any

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.outcome import Figures, LeftOut

_LAYERS, _WIDTH, _HEADS, _SEQUENCE, _CLASSES, _BATCH = 24, 1024, 16, 1024, 50257, 8
"""GPT-2 of 345 million parameters (Radford et al. 2019), and the samples of a step, as `commands.SHAPES` has them."""
_STEPS, _WARM_UP = 20, 5


def pytorch(bench: Bench) -> Figures:
    """Tokens in a second, eager and compiled, and the most memory; `training` has ours."""
    try:
        import torch
    except ImportError as error:
        raise LeftOut(f"PyTorch is not installed: {error}") from error
    if not torch.cuda.is_available():
        raise LeftOut("PyTorch finds no device")
    eager = _measured(torch, _model(torch))
    compiled = _measured(torch, torch.compile(_model(torch)))
    return {"version": torch.__version__, "eager": eager, "compiled": compiled}


def _model(torch: Any) -> Any:
    nn = torch.nn

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
            self.qkv, self.proj = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
            self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            heads = self.qkv(self.norm1(x)).view(b, s, _HEADS, 3, _WIDTH // _HEADS)
            q, k, v = (heads[:, :, :, part].transpose(1, 2) for part in range(3))
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
                mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, _WIDTH))
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = nn.Embedding(_CLASSES, _WIDTH), nn.Embedding(_SEQUENCE, _WIDTH)
            self.layers = nn.Sequential(*(Layer() for _ in range(_LAYERS)))
            self.norm = nn.LayerNorm(_WIDTH)

        def forward(self, ids: Any) -> Any:
            x = self.token(ids) + self.position.weight[: ids.shape[1]]
            return self.norm(self.layers(x)) @ self.token.weight.T

    return Model().cuda()


def _measured(torch: Any, model: Any) -> dict[str, float]:
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    rule = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, _CLASSES, (_BATCH, _SEQUENCE + 1), device="cuda")
    times, loss = [], math.nan
    for _ in range(_STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
            found = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()
        rule.zero_grad(set_to_none=True)
        loss = float(found)
        times.append(time.perf_counter() - begin)
    middle = sorted(times[_WARM_UP:])[(_STEPS - _WARM_UP) // 2]
    most = float(torch.cuda.max_memory_allocated())
    return {"step_s": middle, "tokens_per_s": _BATCH * _SEQUENCE / middle, "peak_bytes": most, "loss": loss}
