"""Mixtures of experts: mixtral, qwen2_moe, qwen3_moe, gpt_oss, deepseek_v2, deepseek_v3, kimi_k2.

qwen2_moe    an MLP that every token takes, weighed by a figure per token
gpt_oss      every other layer looks back over a window; sinks; biases everywhere, bounded gates
deepseek_v2  latent attention; an MLP that every token takes; experts in groups; an MLP alone in the first layers
deepseek_v3  as that, with sigmoids in place of the soft-max of the router; kimi_k2 has other sizes alone
"""

from __future__ import annotations

from strategy.models.decoder_description import HeadNorm, Router
from strategy.models.huggingface.decoders import (
    MOST_AHEAD,
    MOST_EXPERTS,
    MOST_WIDTH,
    Fields,
    Make,
    alike,
    decoder,
    depth,
    dimensions,
    layers,
    positions,
    turning,
    typed,
)
from strategy.models.huggingface.keys import Keys
from strategy.models.huggingface.llama import qwen_windows


def experts(keys: Keys, count: str, *, choices: int | None = None) -> Fields:
    """How many experts there are, how many a token chooses, and the share of the balancing loss."""
    many = keys.size(count, most=MOST_EXPERTS)
    default = {} if choices is None else {"default": choices}
    of_token = keys.size("num_experts_per_tok", **default, most=MOST_EXPERTS)
    return {"experts": many, "choices": of_token, "balance": keys.figure("router_aux_loss_coef", 0.001)}


def mixtral(keys: Keys, sequence: int | None) -> Make:
    """MixtralForCausalLM."""
    fields = dimensions(keys, sequence, epsilon=1e-5) | experts(keys, "num_local_experts")
    fields["expert_hidden"] = fields["hidden"]
    window = keys.size("sliding_window", 0, least=0)
    found = positions(keys, fields, base=1000000.0)
    return decoder(fields | turning(found) | alike(keys, fields, window=window, sparse=True))


def _sparse(keys: Keys, count: int) -> list[bool]:
    """Which layers of a Qwen have experts."""
    step = keys.size("decoder_sparse_step", 1)
    dense = set(keys.sizes("mlp_only_layers", below=count))
    return [place not in dense and (place + 1) % step == 0 for place in range(count)]


def _qwen_experts(keys: Keys) -> Fields:
    count = "num_experts" if keys.given("num_experts") else "num_local_experts"
    keys.read |= {"num_experts", "num_local_experts"}
    fields = experts(keys, count)
    fields["expert_hidden"] = keys.size("moe_intermediate_size", most=MOST_WIDTH)
    fields["normalised"] = keys.flag("norm_topk_prob", False)
    return fields


def qwen2_moe(keys: Keys, sequence: int | None) -> Make:
    """Qwen2MoeForCausalLM."""
    fields = dimensions(keys, sequence) | _qwen_experts(keys)
    fields |= {"qkv_bias": keys.flag("qkv_bias", True), "shared_gate": True}
    fields["shared_hidden"] = keys.size("shared_expert_intermediate_size", 5632, most=MOST_WIDTH)
    count = depth(keys)
    kinds = list(zip(qwen_windows(keys, count), _sparse(keys, count), strict=True))
    return decoder(fields | turning(positions(keys, fields)) | layers(kinds, fields["sequence"]))


def qwen3_moe(keys: Keys, sequence: int | None) -> Make:
    """Qwen3MoeForCausalLM; a window is that of all layers."""
    fields = dimensions(keys, sequence) | _qwen_experts(keys)
    bias = keys.flag("attention_bias", False)
    fields |= {"head_norm": HeadNorm.HEAD, "qkv_bias": bias, "output_bias": bias}
    keys.must_be("shared_expert_intermediate_size", 0)
    keys.must_be("qkv_bias", False)
    keys.must_be("use_qk_norm", True)
    keys.size("max_window_layers", 28, least=0)
    window = keys.size("sliding_window", 0, least=0) if keys.flag("use_sliding_window", False) else 0
    keys.read.add("sliding_window")
    kinds = [(window, sparse) for sparse in _sparse(keys, depth(keys))]
    return decoder(fields | turning(positions(keys, fields)) | layers(kinds, fields["sequence"]))


def gpt_oss(keys: Keys, sequence: int | None) -> Make:
    """GptOssForCausalLM."""
    fields = dimensions(keys, sequence, epsilon=1e-5) | experts(keys, "num_local_experts", choices=4)
    fields["head_width"] = keys.size("head_dim", 64, most=MOST_WIDTH)
    bias = keys.flag("attention_bias", True)
    fields |= {"expert_hidden": fields["hidden"], "qkv_bias": bias, "output_bias": bias, "sinks": True}
    fields |= {"router_bias": True, "expert_bias": True, "gate_limit": keys.figure("swiglu_limit", 7.0, least=1e-6)}
    keys.must_be("swiglu_alpha", 1.702)
    keys.must_be("experts_per_token", fields["choices"])  # the name that openai's own code has for it
    count, window = depth(keys), keys.size("sliding_window", 128)
    windows = typed(keys, count, window, [place % 2 == 0 for place in range(count)])
    kinds = [(window, True) for window in windows]
    found = positions(keys, fields, base=150000.0)
    return decoder(fields | turning(found) | layers(kinds, fields["sequence"]))


def _deepseek(keys: Keys, sequence: int | None) -> Fields:
    """What both have: latent attention, shared experts, and an MLP alone in the first layers."""
    fields = dimensions(keys, sequence, key_heads=True)
    if "q_lora_rank" not in keys.content:
        keys.wrong("q_lora_rank", "the key is missing", None, "a size, or null where queries have no latent")
    still = keys.size("qk_nope_head_dim", 128, most=MOST_WIDTH)
    turns = keys.size("qk_rope_head_dim", 64, most=MOST_WIDTH)
    bias = keys.flag("attention_bias", False)
    for key in ("head_dim", "mlp_bias", "qk_head_dim"):
        keys.read.add(key)
    fields |= {
        "head_width": still + turns,
        "rotary_key": turns,
        "value_width": keys.size("v_head_dim", 128, most=MOST_WIDTH),
        "query_latent": keys.size("q_lora_rank", 0, least=0, most=MOST_WIDTH),
        "key_latent": keys.size("kv_lora_rank", 512, most=MOST_WIDTH),
        "qkv_bias": bias,
        "output_bias": bias,
    }
    found = positions(keys, fields, width=turns)
    fields |= turning(found)
    fields["score_scale"] = found.score_scale * (still + turns) ** -0.5 if found.score_scale != 1.0 else 0.0
    inner = keys.size("moe_intermediate_size", most=MOST_WIDTH)
    fields |= {
        "experts": keys.size("n_routed_experts", most=MOST_EXPERTS),
        "choices": keys.size("num_experts_per_tok", most=MOST_EXPERTS),
        "expert_hidden": inner,
        "shared_hidden": inner * keys.size("n_shared_experts", least=0, most=MOST_EXPERTS),
        "routed_scale": keys.figure("routed_scaling_factor", least=1e-6),
        "balance": keys.figure("aux_loss_alpha", 0.0),
    }
    count = depth(keys)
    first, step = keys.size("first_k_dense_replace", least=0), keys.size("moe_layer_freq", 1)
    if first > count:
        keys.wrong("first_k_dense_replace", "more layers than there are", first, f"at most {count}")
    kinds = [(0, place >= first and place % step == 0) for place in range(count)]
    return fields | layers(kinds, fields["sequence"])


def _groups(keys: Keys) -> Fields:
    groups = keys.size("n_group", 1, most=MOST_EXPERTS)
    return {"groups": groups, "chosen_groups": keys.size("topk_group", groups, most=MOST_EXPERTS)}


def deepseek_v2(keys: Keys, sequence: int | None) -> Make:
    """DeepseekV2ForCausalLM; the weights of experts are not made to sum to one, whatever `norm_topk_prob` says."""
    fields = _deepseek(keys, sequence) | {"normalised": False}
    groups = _groups(keys)
    method = keys.word("topk_method", "greedy", {"greedy": "greedy", "group_limited_greedy": "groups"})
    keys.must_be("scoring_func", "softmax")
    keys.must_be("norm_topk_prob", False)
    return decoder(fields | (groups if method == "groups" else {}))


def deepseek_v3(keys: Keys, sequence: int | None) -> Make:
    """DeepseekV3ForCausalLM; what corrects the choice of experts begins at zero, and is no parameter."""
    fields = _deepseek(keys, sequence) | _groups(keys)
    fields |= {"router": Router.SIGMOID, "normalised": keys.flag("norm_topk_prob", True)}
    keys.must_be("scoring_func", "sigmoid")
    keys.must_be("topk_method", "noaux_tc")
    keys.must_be("rope_interleave", True)
    fields["ahead"] = keys.size("num_nextn_predict_layers", 0, least=0, most=MOST_AHEAD)
    return decoder(fields)


TABLES = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
}
