"""NeMo: YAML of its Megatron GPT models, as MLPerf's submissions have it, with `model`, `trainer` and `peft`.

What does not stand in the file is that of the model that it starts from, which the name of the file tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strategy.closed_form.job import MODULES
from strategy.layout.schedule import Schedule
from strategy.trainers.architecture import Architecture, PositionKind
from strategy.trainers.known_models import known_model, known_models, model_in
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

_HALVES = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": "single"}

_ACTIVATIONS = {"gelu": (False, "gelu"), "fast-geglu": (True, "gelu"), "geglu": (True, "gelu"),
                "fast-swiglu": (True, "silu"), "swiglu": (True, "silu")}  # fmt: skip
_NORMS = {"layernorm1p": False, "layernorm": False, "rmsnorm": True}
_POSITIONS = {"learned_absolute": PositionKind.LEARNED, "rope": PositionKind.ROTARY, "alibi": PositionKind.ALIBI}


def is_nemo(keys: Mapping[str, Any]) -> bool:
    """Whether keys are NeMo's."""
    trainer, model = keys.get("trainer"), keys.get("model")
    return isinstance(trainer, dict) and "num_nodes" in trainer and isinstance(model, dict)


def read_nemo(settings: Settings, model: Architecture | None = None) -> TrainedModel:
    """What NeMo's keys say."""
    tp, pp, cp = (
        settings.count(f"model.{axis}_parallel_size", 1) for axis in ("tensor_model", "pipeline_model", "context")
    )
    sequence = settings.count("model.encoder_seq_length", 2048)
    found = _model(settings, tp) if model is None else model
    found = _overwritten(settings, found)
    if found.experts:
        ep = settings.count("model.expert_model_parallel_size", 1)
    else:
        ep = 1
        settings.pass_over("there are no experts", "model.expert_*", "model.moe_*")
    virtual = settings.count("model.virtual_pipeline_model_parallel_size", 1) if pp > 1 else 1
    if pp == 1:
        settings.pass_over("there is no pipeline", "model.virtual_*", "model.overlap_p2p_comm", "model.batch_p2p_comm")
    per_node, nodes = settings.count("trainer.devices", 1), settings.count("trainer.num_nodes", 1)
    kind, modules, layers = _recompute(settings, pp * virtual)
    precision, half = _precision(settings)
    shared = settings.flag("model.optim.use_distributed_optimizer") or settings.flag("optim.use_distributed_optimizer")
    if settings.flag("model.megatron_amp_O2"):
        settings.assume("with megatron_amp_O2 the state of the optimiser is shared out, as its distributed Adam does")
        shared = True
    rank = 0
    if settings.word("model.peft.peft_scheme", {"none": False, "lora": True}, "none"):
        rank = settings.count("model.peft.lora_tuning.adapter_dim", 32)
    if tp == 1:
        settings.pass_over("there is no tensor parallelism", "model.sequence_parallel", "model.*tp_comm*")
    return TrainedModel(
        trainer=TrainerName.NEMO,
        model=found,
        sequence=sequence,
        micro_batch=settings.count("model.micro_batch_size", 1),
        global_batch=settings.count("model.global_batch_size"),
        gpus=per_node * nodes,
        gpus_per_node=per_node,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        virtual=virtual,
        schedule=Schedule.INTERLEAVED if virtual > 1 else Schedule.ONE_F_ONE_B,
        zero=1 if shared else 0,
        sequence_parallel=settings.flag("model.sequence_parallel") if tp > 1 else False,
        precision=precision,
        half=half,
        optimizer=settings.word("model.optim.name", {"mcore_distributed_optim": "adamw", "fused_adam": "adamw",
                                "distributed_fused_adam": "adamw", "adam": "adamw"}, "mcore_distributed_optim"),
        recompute=kind,
        recompute_modules=modules,
        recompute_layers=layers,
        offload=("activations",) if settings.flag("model.cpu_offloading") else (),
        adapter_rank=rank,
    )  # fmt: skip


def _model(settings: Settings, tp: int) -> Architecture:
    base = settings.value("model.base_config")
    named = known_model(str(base)) if base is not None else None
    if base is not None and named is None:
        settings.wrong("model.base_config", base, "a known model, such as 405b")
    own = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    if named is None and all(f"model.{key}" in settings for key in own[:3]):
        width, heads = settings.count("model.hidden_size"), settings.count("model.num_attention_heads")
        # NeMo pads GPT-2's words to a multiple of 128 per rank.
        multiple = settings.count("model.make_vocab_size_divisible_by", 128) * tp
        words = -(-settings.count("model.override_vocab_size", 50257) // multiple) * multiple
        settings.defaults["vocabulary"] = words
        gated, activation = settings.word("model.activation", _ACTIVATIONS, "gelu")
        biases = settings.flag("model.bias", True)
        positions = settings.word("model.position_embedding_type", _POSITIONS, "learned_absolute")
        table = settings.count("model.max_position_embeddings", 2048) if positions is PositionKind.LEARNED else 0
        if not table:
            settings.pass_over("rotary positions have no table", "model.max_position_embeddings")
        return Architecture(
            settings.count("model.num_layers"), width, heads, settings.count("model.num_query_groups", heads),
            settings.count("model.kv_channels", max(width // heads, 1)),
            settings.count("model.ffn_hidden_size", 4 * width), words, gated=gated, activation=activation,
            tied=settings.flag("model.share_embeddings_and_output_weights", True), biases=biases, qkv_bias=biases,
            rms_norm=settings.word("model.normalization", _NORMS, "layernorm1p"), positions=positions, table=table,
        )  # fmt: skip
    if named is None:
        name = model_in(settings.where)
        named = known_model(name) if name else None
        if named is None:
            settings.missing("model.num_layers", "dimensions, or a file that is named after its model; or give --model")
            return known_models()["llama2-7b"]
        settings.assume(f"the model is {name}, after the name of the file")
    settings.pass_over("rotary positions have no table", "model.max_position_embeddings")
    return named


def _overwritten(settings: Settings, model: Architecture) -> Architecture:
    """Fewer layers, where the file cuts a named model short."""
    for key in ("model.overwritten_attributes.num_layers", "model.num_layers"):
        if key in settings:
            return replace(model, layers=settings.count(key))
    return model


def _precision(settings: Settings) -> tuple[str, str]:
    half = settings.word("trainer.precision", _HALVES, "bf16")
    if settings.flag("model.fp4"):
        settings.pass_over("products are in 4 bits", "model.fp8*", "model.*fp8*")
        settings.word("model.fp4_recipe", {"nvfp4": 1}, "nvfp4")
        return "four", half
    settings.pass_over("nothing is in 4 bits", "model.fp4*")
    if settings.flag("model.fp8"):
        known = {"delayed": "eight", "tensorwise": "eight", "blockwise": "row8", "mxfp8": "mx8"}
        return settings.word("model.fp8_recipe", known, "delayed"), half
    settings.pass_over("nothing is in 8 bits", "model.fp8*", "model.*fp8*", "model.reduce_amax")
    return ("single" if half == "single" else "half"), half


def _recompute(settings: Settings, stages: int) -> tuple[str, tuple[str, ...], int]:
    kinds = {"none": "none", "selective": "selective", "full": "full"}
    key = (
        "model.activations_checkpoint" if "model.activations_checkpoint_granularity" in settings else "model.recompute"
    )
    kind = settings.word(f"{key}_granularity", kinds, "none")
    if kind == "none":
        settings.pass_over("nothing is computed again", "model.activations_checkpoint_*", "model.recompute_*")
        return kind, (), 0
    if kind == "selective":
        names = settings.words(f"{key}_modules", ("core_attn",))
        return kind, tuple(sorted(name for name in names if name in MODULES)), 0
    method = settings.word(f"{key}_method", {"uniform": "uniform", "block": "block"}, "uniform")
    count = settings.count(f"{key}_num_layers", 1)
    return kind, (), count * stages if method == "block" else 0
