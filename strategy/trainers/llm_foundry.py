"""llm-foundry: YAML of its training scripts. Weights are shared out by FSDP; the devices are given elsewhere.

Variables (`${variables.max_seq_len}`) are put in before the keys are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategy.trainers.architecture import Architecture, PositionKind
from strategy.trainers.known_models import known_model
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

_VARIABLE = re.compile(r"\$\{([\w.]+)\}")
_SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
_RULES = {
    "decoupled_adamw": "adamw", "adamw": "adamw", "adam": "adam", "decoupled_lionw": "lion", "sgd": "sgd",
}  # fmt: skip


def is_llm_foundry(keys: Mapping[str, Any]) -> bool:
    """Whether keys are llm-foundry's."""
    inner = keys.get("parameters")
    return "device_train_microbatch_size" in keys or (isinstance(inner, dict) and is_llm_foundry(inner))


def plain_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with variables put in; those of a run's `parameters` stand with the others."""
    inner = {key.removeprefix("parameters."): value for key, value in keys.items() if key.startswith("parameters.")}
    found = {key: value for key, value in keys.items() if not key.startswith("parameters.")} | inner

    def put_in(value: Any) -> Any:
        name = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
        if name is None:
            return value
        other = found.get(name[1], found.get(f"variables.{name[1]}"))
        return value if other is None or _VARIABLE.fullmatch(str(other)) else other

    return {key: put_in(value) for key, value in found.items()}


def read_llm_foundry(settings: Settings, model: Architecture | None = None) -> TrainedModel:
    """What llm-foundry's keys say."""
    sequence = settings.count("max_seq_len")
    settings.pass_over(
        "max_seq_len says it", "variables.max_seq_len", "*.max_seq_len", "max_split_size_mb", "global_seed",
        "model.config_overrides.n_positions", "model.config_overrides.max_position_embeddings",
    )  # fmt: skip
    found = _model(settings, sequence) if model is None else model
    shards = any(key.startswith("fsdp_config.") for key in settings.values)
    zero = settings.word("fsdp_config.sharding_strategy", _SHARDING, "FULL_SHARD") if shards else 0
    precision = settings.word("precision", {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "single",
                                            "amp_fp8": "fp8"}, "amp_bf16")  # fmt: skip
    whole = settings.flag("fsdp_config.activation_checkpointing")
    offload = ("activations",) if settings.flag("fsdp_config.activation_cpu_offload") else ()
    return TrainedModel(
        trainer=TrainerName.LLM_FOUNDRY,
        model=found,
        sequence=sequence,
        micro_batch=settings.count("device_train_microbatch_size", 1),
        global_batch=settings.count("global_train_batch_size"),
        gpus=settings.maybe("compute.gpus") or 0,
        zero=zero,
        precision={"single": "single", "fp8": "eight"}.get(precision, "half"),
        half="bf16" if precision == "fp8" else precision,
        optimizer=settings.word("optimizer.name", _RULES, "decoupled_adamw"),
        recompute="full" if whole else "none",
        fused_attention=_fused(settings),
        offload=offload,
        adapter_rank=settings.maybe("model.peft_config.r") or 0,
    )


def _fused(settings: Settings) -> bool:
    if "model.use_flash_attention_2" in settings:
        return settings.flag("model.use_flash_attention_2")
    key = "model.attn_config.attn_impl"
    if key not in settings:
        key = "model.config_overrides.attn_config.attn_impl"
    return settings.word(key, {"flash": True, "torch": False, "triton": True}, "flash")


def _model(settings: Settings, sequence: int) -> Architecture:
    if "model.pretrained_model_name_or_path" in settings:
        name = str(settings.value("model.pretrained_model_name_or_path"))
        settings.pass_over("the model's name says it", "variables.model_name", "model.name")
        found = known_model(name)
        if found is None:
            settings.wrong("model.pretrained_model_name_or_path", name, "a known model, or give --model config.json")
            found = Architecture(1, 1, 1, 1, 1, 1, 1)
        return found
    settings.pass_over("it has the model's own words", "tokenizer.*", "variables.tokenizer_name", "tokenizer_name")
    settings.word("model.name", {"mpt_causal_lm": 1}, "mpt_causal_lm")
    width, heads = settings.count("model.d_model"), settings.count("model.n_heads")
    ratio = settings.figure("model.expansion_ratio", 4.0)
    experts: dict[str, Any] = {}
    if "model.ffn_config.moe_num_experts" in settings:
        experts = {
            "experts": settings.count("model.ffn_config.moe_num_experts"),
            "choices": settings.count("model.ffn_config.moe_top_k", 1),
            "expert_ffn": round(width * ratio),
        }
    return Architecture(
        layers=settings.count("model.n_layers"),
        width=width,
        heads=heads,
        key_heads=heads,
        head_width=max(width // heads, 1),
        ffn=round(width * ratio),
        vocabulary=settings.count("model.vocab_size", 50368),
        tied=True,
        biases=not settings.flag("model.no_bias"),
        qkv_bias=not settings.flag("model.no_bias"),
        positions=PositionKind.LEARNED,
        table=sequence,
        **experts,
    )
