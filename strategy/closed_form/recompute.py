"""Recompute: what a backward pass computes again, by module, and so what a forward pass need not keep.

Full recompute keeps a layer's input alone (Chen et al., 2016, arXiv:1604.06174). Selective recompute names modules, as
Megatron-Core does (`--recompute-modules`): the core of attention by default (Korthikanti et al., 2022,
arXiv:2205.05198, section 5). torchtitan's chooses by op: every second product (Liang et al., 2024, arXiv:2410.06511).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategy.closed_form.job import Jobs
from strategy.closed_form.products import Floats

_HALF = 0.5
"""Of the products, what is computed again by op."""


def computed_again(jobs: Jobs, module: str) -> npt.NDArray[np.bool_]:
    """Which jobs compute a module again by name."""
    return np.array([job.recompute == "selective" and module in job.modules for job in jobs.jobs])


def share_again(jobs: Jobs) -> Floats:
    """Share of the forward pass's FLOPs that is computed again, from 0 to 1; memory-bound modules have none."""
    j = jobs
    full = np.array([job.recompute == "full" for job in jobs.jobs])
    layers = np.where(j.recompute_layers > 0, np.minimum(j.recompute_layers / np.maximum(j.layers, 1), 1), 1.0)
    flops = multiply_adds_per_token(jobs)
    products = sum((flops[name] for name in flops if name != "core_attn"), np.zeros(len(jobs)))
    total = np.maximum(products + flops["core_attn"], 1.0)
    again = sum((np.where(computed_again(jobs, name), flops[name], 0.0) for name in flops), np.zeros(len(jobs)))
    again = again + np.where(computed_again(jobs, "per-op"), _HALF * products, 0.0)
    return np.where(full, layers, again / total)


def multiply_adds_per_token(jobs: Jobs) -> dict[str, Floats]:
    """Multiply-adds of all blocks for one token of a forward pass, by module; `other` are the products of none."""
    j = jobs
    fused = np.array([job.flash for job in jobs.jobs])
    gates = 2 + j.gated
    scores = j.heads * (j.head_qk + j.head_v) * j.seq * j.attended * np.where(fused, 0.5, 1.0)
    up = np.where(j.kv_rank > 0, j.heads * (j.head_qk * j.q_rank + (j.head_qk + j.head_v) * j.kv_rank), 0.0)
    down = np.where(j.kv_rank > 0, j.hidden * (j.q_rank + j.kv_rank), 0.0)
    inner = j.heads * j.head_qk + j.kv_heads * (j.head_qk + j.head_v)
    around = j.hidden * (j.heads * j.head_v + np.where(j.kv_rank > 0, 0.0, inner))
    return {
        "core_attn": j.attention_layers * scores,
        "mla_up_proj": j.attention_layers * up,
        "mlp": j.dense_layers * gates * j.hidden * j.ffn,
        "moe": j.moe_layers * gates * np.where(j.latent > 0, j.latent, j.hidden) * j.expert_ffn * j.top_k,
        "shared_experts": j.moe_layers * gates * j.hidden * j.shared_ffn,
        "other": j.attention_layers * (around + down) + j.mamba_layers * 3 * j.hidden * j.mamba_inner,
    }
