"""Ask transformers for small decoders of every family: config, random weights, logits and loss of one batch.

    python -m tests.pytorch.decoders     writes the folder `decoders` beside this file; needs torch and transformers

Every feature is alive: samples are longer than windows and than the context before scaling, fewer experts are chosen
than there are, layers differ where they may. Weights are drawn large, so that what is left out shows.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FOLDER = Path(__file__).with_name("decoders")
REFERENCE = FOLDER / "logits.npz"
SHARDED = "qwen3"
"""Saved in several files."""
SAMPLES, SEQUENCE, VOCABULARY = 2, 12, 32

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
}
_YARN = {"beta_fast": 4.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 8}
_LATENT = {
    **_SIZES,
    **{"num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 6},
    **{"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "moe_intermediate_size": 6, "n_group": 4},
    **{"topk_group": 2, "n_routed_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 2.0},
    "rope_scaling": {"type": "yarn", **_YARN, "mscale": 0.9, "mscale_all_dim": 0.7},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        **_SIZES,
        **{"attention_bias": True, "mlp_bias": True},
        "rope_scaling": {
            **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_embeddings": 8,
        },
    },
    "mistral": {**_SIZES, "sliding_window": 5, "head_dim": 6},
    "qwen2": {
        **_SIZES,
        **{"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    },
    "qwen3": {**_SIZES, "head_dim": 6},
    "phi3": {
        **_SIZES,
        **{"hidden_size": 32, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 8},
        **{"sliding_window": 7, "pad_token_id": 0},
        "rope_scaling": {"type": "longrope", "long_factor": [1.2, 3.0], "short_factor": [1.0, 1.1]},
    },
    "olmo2": {**_SIZES},
    "mixtral": {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    "qwen2_moe": {
        **_SIZES,
        **{"num_hidden_layers": 4, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
        **{"shared_expert_intermediate_size": 8, "decoder_sparse_step": 2},
    },
    "qwen3_moe": {
        **_SIZES,
        **{"head_dim": 6, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
        **{"mlp_only_layers": [1], "norm_topk_prob": True},
    },
    "gpt_oss": {
        **_SIZES,
        **{"num_hidden_layers": 4, "head_dim": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
        **{"sliding_window": 5, "swiglu_limit": 1.0, "rope_scaling": {"rope_type": "yarn", **_YARN, "truncate": False}},
    },
    "deepseek_v2": {
        **_LATENT,
        **{"n_shared_experts": 2, "topk_method": "group_limited_greedy", "norm_topk_prob": False},
    },
    "deepseek_v3": {**_LATENT, "n_shared_experts": 1, "norm_topk_prob": True},
    "gemma2": {
        **{key: value for key, value in _SIZES.items() if key != "tie_word_embeddings"},
        **{"num_hidden_layers": 4, "head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 5},
        **{"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    },
    "gemma3_text": {
        **{key: value for key, value in _SIZES.items() if key != "tie_word_embeddings"},
        **{"num_hidden_layers": 5, "head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 5},
        **{"sliding_window_pattern": 3, "rope_local_base_freq": 10.0},
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "gpt_neox": {
        **{key: value for key, value in _SIZES.items() if key not in ("rms_norm_eps", "rope_theta")},
        **{"num_key_value_heads": None, "hidden_size": 32, "rotary_pct": 0.5, "rotary_emb_base": 100},
        **{"hidden_act": "gelu", "use_parallel_residual": True, "layer_norm_eps": 1e-5},
    },
    "gpt2": {
        **{"vocab_size": VOCABULARY, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": SEQUENCE},
        **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    },
}
for _name, _content in CONFIGS.items():
    _content["model_type"] = _name
CONFIGS["llama_dynamic"] = {
    **{**_SIZES, "model_type": "llama", "max_position_embeddings": 8},
    "rope_scaling": {"type": "dynamic", "factor": 3.0},
}
CONFIGS["gpt_neox_serial"] = {**CONFIGS["gpt_neox"], "use_parallel_residual": False}
for _content in CONFIGS.values():
    if _content.get("num_key_value_heads", 1) is None:
        del _content["num_key_value_heads"]


def batch() -> tuple[Array, Array]:
    """ids and labels, [b, s] each."""
    drawn = np.random.default_rng(11).integers(1, VOCABULARY, (SAMPLES, SEQUENCE + 1))
    return drawn[:, :-1].astype(np.int32), drawn[:, 1:].astype(np.int32)


def model_of(name: str) -> Any:
    """The model of transformers, its weights drawn by their names."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**json.loads(json.dumps(CONFIGS[name])))
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            rng = np.random.default_rng(zlib.crc32(key.encode()))
            values = 0.3 * rng.standard_normal(tuple(parameter.shape)) + (parameter.mean().item() > 0.9)
            parameter.copy_(torch.tensor(values, dtype=torch.float32))
    return model


def logits_and_loss(name: str) -> tuple[Array, float]:
    """What it computes of the batch; the loss is the mean over all tokens."""
    import torch

    ids, labels = (torch.tensor(array.astype(np.int64)) for array in batch())
    with torch.no_grad():
        logits = model_of(name)(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
    return logits.numpy(), float(loss)


def write() -> None:
    """The folder of every family, and what was computed."""
    found: dict[str, Array] = {}
    for name, content in CONFIGS.items():
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        shards = {"max_shard_size": "20KB"} if name == SHARDED else {}
        model_of(name).save_pretrained(folder, **shards)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n")
        logits, loss = logits_and_loss(name)
        found |= {f"{name}.logits": logits, f"{name}.loss": np.array(loss)}
    np.savez_compressed(REFERENCE, **found)


if __name__ == "__main__":
    write()
