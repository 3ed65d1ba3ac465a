"""nanotron: YAML of its release 0.4. Micro-batches, degrees and the model in full stand there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategy.layout.schedule import Schedule
from strategy.trainers.architecture import Architecture, PositionKind
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

_MODEL = "model.model_config"
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "single"}


def is_nanotron(keys: Mapping[str, Any]) -> bool:
    """Whether keys are nanotron's."""
    return isinstance(keys.get("model"), dict) and "model_config" in keys["model"]


def read_nanotron(settings: Settings, model: Architecture | None = None) -> TrainedModel:
    """What nanotron's keys say."""
    tp, pp, dp = (settings.count(f"parallelism.{axis}", 1) for axis in ("tp", "pp", "dp"))
    cp = settings.count("parallelism.context_parallel_size", 1)
    found = _model(settings, tp) if model is None else model
    if found.experts:
        ep = settings.count("parallelism.expert_parallel_size", 1)
    else:
        ep = 1
        settings.pass_over("there are no experts", "parallelism.expert_parallel_size", "parallelism.moe_*")
    half = settings.word("model.dtype", _DTYPES, "bfloat16")
    if pp == 1:
        settings.pass_over("there is no pipeline", "parallelism.pp_engine")
    if tp == 1:
        settings.pass_over("there is no tensor parallelism", "parallelism.tp_*")
        reduced = False
    else:
        reduced = settings.word("parallelism.tp_mode", {"REDUCE_SCATTER": True, "ALL_REDUCE": False}, "ALL_REDUCE")
    schedules = {"1f1b": Schedule.ONE_F_ONE_B, "afab": Schedule.GPIPE}
    wide = settings.flag("optimizer.accumulate_grad_in_fp32")
    kinds = {"adamW": "adamw", "sgd": "sgd"}
    settings.assume("priced as an eager Megatron: no run of nanotron is among those that the constants rest on")
    return TrainedModel(
        trainer=TrainerName.NANOTRON,
        model=found,
        sequence=settings.count("tokens.sequence_length"),
        micro_batch=settings.count("tokens.micro_batch_size"),
        micro_batches=settings.count("tokens.batch_accumulation_per_replica", 1),
        gpus=tp * pp * dp * cp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        schedule=settings.word("parallelism.pp_engine", schedules, "1f1b") if pp > 1 else Schedule.ONE_F_ONE_B,
        zero=settings.count("optimizer.zero_stage", 0, least=0),
        sequence_parallel=reduced,
        precision="single" if half == "single" else "half",
        half=half,
        gradients="single" if wide else "half",
        optimizer=settings.word("optimizer.optimizer_factory.name", kinds, "adamW"),
        recompute="full" if settings.flag("parallelism.recompute_layer") else "none",
    )


def _model(settings: Settings, tp: int) -> Architecture:
    def key(name: str) -> str:
        return f"{_MODEL}.{name}"

    width, heads = settings.count(key("hidden_size")), settings.count(key("num_attention_heads"))
    settings.pass_over("positions are rotary, without a table", key("max_position_embeddings"))
    settings.word(key("hidden_act"), {"silu": 1}, "silu")
    if key("attention_bias") in settings:
        bias = settings.flag(key("attention_bias"))
    else:
        bias = settings.flag(key("is_qwen2_config"))
    settings.pass_over("the model's class says it", key("is_*_config"))
    # Ranks of the tensor axis share out the rows of the embedding.
    multiple = settings.count("model.make_vocab_size_divisible_by", 1) * tp
    words = settings.count(key("vocab_size"))
    ffn = settings.count(key("intermediate_size"))
    return Architecture(
        layers=settings.count(key("num_hidden_layers")),
        width=width,
        heads=heads,
        key_heads=settings.count(key("num_key_value_heads"), heads),
        head_width=max(width // heads, 1),
        ffn=ffn,
        vocabulary=-(-words // multiple) * multiple,
        gated=True,
        activation="silu",
        tied=settings.flag(key("tie_word_embeddings")),
        rms_norm=True,
        qkv_bias=bias,
        epsilon=settings.figure(key("rms_norm_eps"), 1e-6),
        positions=PositionKind.ROTARY,
        rotary_base=settings.figure(key("rope_theta"), 10000.0),
        window=settings.maybe(key("sliding_window_size")) or 0,
        **_experts(settings, ffn),
    )


def _experts(settings: Settings, ffn: int) -> dict[str, Any]:
    new = f"{_MODEL}.moe_config"
    if f"{new}.num_experts" in settings:
        shared = settings.flag(f"{new}.enable_shared_expert")
        return {
            "experts": settings.count(f"{new}.num_experts"),
            "choices": settings.count(f"{new}.top_k", 1),
            "expert_ffn": settings.count(f"{new}.moe_intermediate_size", ffn),
            "shared_ffn": settings.count(f"{new}.shared_expert_intermediate_size", ffn) if shared else 0,
        }
    if f"{_MODEL}.moe_num_experts" in settings:
        return {
            "experts": settings.count(f"{_MODEL}.moe_num_experts"),
            "choices": settings.count(f"{_MODEL}.num_experts_per_tok", 1),
            "expert_ffn": ffn,
            "capacity": settings.figure(f"{_MODEL}.moe_capacity_factor", 1.0),
        }
    return {}
