"""Writing: what is trained and how as a trainer's files, and what these cannot say, found by reading them back.

megatron    arguments of `pretrain_gpt.py`, with those of torchrun ahead of them
torchtitan  TOML of its release 0.2; models are named by their flavour
deepspeed   DeepSpeed's JSON, and the arguments of Megatron-DeepSpeed's script, which name it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.passes.training import Training
from strategy.trainers.architecture import Architecture, PositionKind, as_decoder, description, of_model
from strategy.trainers.formats import arguments_of, as_arguments, as_json, as_toml
from strategy.trainers.known_models import known_models
from strategy.trainers.read import ReadConfiguration, read_document, read_pair
from strategy.trainers.torchtitan import SCHEDULES
from strategy.trainers.trained import TrainedModel, TrainerName

WRITTEN = (TrainerName.MEGATRON, TrainerName.TORCHTITAN, TrainerName.DEEPSPEED)
ENDINGS = {TrainerName.MEGATRON: ".sh", TrainerName.TORCHTITAN: ".toml", TrainerName.DEEPSPEED: ".json"}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_NOT_COMPARED = ("trainer", "model", "gpus_per_node", "framework", "exposed", "gradients", "deterministic")
"""Fields that are the trainer's own, or compared otherwise."""


@dataclass(frozen=True, slots=True)
class WrittenConfiguration:
    """Files of a trainer: name -> text, the first the one to read; and what they do not say, in words."""

    files: Mapping[str, str]
    cannot_say: tuple[str, ...]


def write_configuration(wanted: TrainedModel, model: Model, training: Training, name: str) -> WrittenConfiguration:
    """What is trained and how as files of its trainer, one of `WRITTEN`.

    Args:
        wanted: what the files shall say.
        model: which its architecture describes.
        training: rates and decays, which it leaves out.
        name: of the file; a second one is named after it.

    Raises:
        InputError: torchtitan has no flavour like the model.
    """
    if wanted.trainer is TrainerName.TORCHTITAN:
        files = {name: as_toml(_torchtitan(wanted, training))}
    elif wanted.trainer is TrainerName.MEGATRON:
        files = {name: as_arguments(_megatron(wanted, training))}
    else:
        caller = f"{Path(name).stem}__args.sh"
        files = {name: as_json(_deepspeed(wanted, training)), caller: as_arguments(_called(wanted, training, name))}
    back = read_back(files, wanted.trainer)
    return WrittenConfiguration(files, tuple(_lost(wanted, back.trained, model)))


def check_model(model: Model, trainer: TrainerName) -> None:
    """Whether a trainer's file can name a model at all, before a plan is searched for it.

    Raises:
        InputError: the model is no decoder of text, has features without words, or torchtitan has no flavour like it.
    """
    said = of_model(model)
    if description(said, model.tokens_per_sample) != as_decoder(model):
        raise InputError("the model has features that configurations have no words for", where=str(trainer))
    if trainer is TrainerName.TORCHTITAN:
        flavour_of(said, model.tokens_per_sample)
    if trainer is TrainerName.DEEPSPEED and said.experts:
        raise InputError("Megatron-DeepSpeed's script has no experts of this kind", where=str(trainer))


def as_trained_by(model: Model, trainer: TrainerName) -> tuple[Model, tuple[str, ...]]:
    """A model that a trainer's file can name, as that trains it; and what this leaves out of its loss, in words.

    torchtitan evens out the load of experts by a bias of the router, which no gradient passes through, and has no loss
    for it (Wang et al. 2024, arXiv:2408.15664).
    """
    share = getattr(model, "balance", 0.0)
    if trainer is not TrainerName.TORCHTITAN or not share:
        return model, ()
    said = f"the share of {share:g} of the experts' balancing loss: {trainer} balances them by a bias"
    return replace(model, balance=0.0), (said,)  # type: ignore[type-var]


def read_back(files: Mapping[str, str], trainer: TrainerName) -> ReadConfiguration:
    """What a trainer's files say, from their text alone."""
    import json
    import tomllib

    (name, text), *others = files.items()
    if trainer is TrainerName.TORCHTITAN:
        return read_document(tomllib.loads(text), Path(name), trainer=trainer)
    if trainer is TrainerName.MEGATRON:
        return read_document(arguments_of(text, name), Path(name), trainer=trainer)
    caller, arguments = others[0]
    return read_pair(json.loads(text), arguments_of(arguments, caller), Path(name), Path(caller))


def _lost(wanted: TrainedModel, found: TrainedModel, described: Model) -> list[str]:
    """Fields that read back otherwise than they were meant."""
    lost = [
        f"{field.name} {getattr(wanted, field.name)!s}: the file says {getattr(found, field.name)!s}"
        for field in fields(TrainedModel)
        if field.name not in _NOT_COMPARED and getattr(wanted, field.name) != getattr(found, field.name)
    ]
    model = as_decoder(described)
    try:
        same = description(found.model, found.sequence) == model
    except InputError:
        same = False
    if not same:
        changed = [
            f"{field.name} {getattr(wanted.model, field.name)!s}, not {getattr(found.model, field.name)!s}"
            for field in fields(Architecture)
            if getattr(wanted.model, field.name) != getattr(found.model, field.name)
        ]
        lost.append(f"the model: {'; '.join(changed) or 'features without words'}")
    return lost


def _torchtitan(wanted: TrainedModel, training: Training) -> dict[str, dict[str, Any]]:
    dp = wanted.gpus // wanted.replica_gpus
    family, flavour = flavour_of(wanted.model, wanted.sequence)
    schedules = {schedule: word for word, schedule in SCHEDULES.items()}
    local = wanted.global_batch // dp if wanted.pp > 1 else wanted.micro_batch
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": wanted.replicas if wanted.zero else dp,
        "data_parallel_shard_degree": dp // wanted.replicas if wanted.zero else 1,
        "fsdp_reshard_after_forward": "always" if wanted.zero == 3 else "never",
        "tensor_parallel_degree": wanted.tp,
        "pipeline_parallel_degree": wanted.pp,
        "context_parallel_degree": wanted.cp,
    }
    if wanted.model.experts:
        parallelism |= {"expert_parallel_degree": wanted.ep, "expert_tensor_parallel_degree": wanted.etp}
    if wanted.pp > 1:
        parallelism |= {
            "pipeline_parallel_schedule": schedules.get(wanted.schedule, "1F1B"),
            "pipeline_parallel_microbatch_size": wanted.micro_batch,
            # By default the embedding and the head count as one layer each, which deals the layers out unevenly.
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    if wanted.schedule is Schedule.INTERLEAVED:
        places = wanted.pp * wanted.virtual
        parallelism["pipeline_parallel_layers_per_stage"] = -(-wanted.model.layers // places)
    halves = {"bf16": "bfloat16", "fp16": "float16", "single": "float32"}
    return {
        "model": {"name": family, "flavor": flavour},
        "training": {
            "seq_len": wanted.sequence,
            "local_batch_size": local,
            "global_batch_size": training.global_batch,
            "max_norm": training.max_norm,
            "mixed_precision_param": halves[wanted.half],
        },
        "optimizer": {
            "name": {"adam": "Adam"}.get(wanted.optimizer, "AdamW"),
            "lr": training.lr,
            "beta1": training.beta1,
            "beta2": training.beta2,
            "eps": training.epsilon,
            "weight_decay": training.weight_decay,
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": "full" if wanted.recompute == "full" else "none"},
    }


def flavour_of(architecture: Architecture, sequence: int) -> tuple[str, str]:
    """torchtitan's family and flavour whose model is this one.

    Raises:
        InputError: there is none.
    """
    model = description(architecture, sequence)
    for name, known in known_models().items():
        if name.startswith("torchtitan/") and _same(known, sequence, model):
            _, family, flavour = name.split("/")
            return family, flavour
    flavours = ", ".join(name.removeprefix("torchtitan/") for name in known_models() if name.startswith("torchtitan/"))
    raise InputError(
        "torchtitan names its models, and none of its flavours is like this one", where="torchtitan", expected=flavours
    )


def _same(known: Architecture, sequence: int, model: object) -> bool:
    try:
        found = description(known, sequence)
    except InputError:
        return False
    # Our presets leave these out, and neither time nor memory follows them.
    small = {name: getattr(model, name) for name in ("epsilon", "balance") if hasattr(model, name)}
    return type(found) is type(model) and replace(found, **small) == model  # type: ignore[type-var]


def _megatron(wanted: TrainedModel, training: Training) -> dict[str, Any]:
    """Arguments of `pretrain_gpt.py`."""
    found = {
        "nnodes": max(wanted.gpus // wanted.gpus_per_node, 1),
        "nproc-per-node": min(wanted.gpus_per_node, wanted.gpus),
        **_model_arguments(wanted.model, wanted.sequence),
        **_training_arguments(wanted, training),
        "context-parallel-size": wanted.cp,
        "use-distributed-optimizer": wanted.zero == 1,
        "use-megatron-fsdp": wanted.zero > 1,
        "overlap-grad-reduce": True,
        "overlap-param-gather": wanted.zero == 1,
        "attention-backend": "auto",
    }
    if wanted.replicas > 1:
        found["num-distributed-optimizer-instances"] = wanted.replicas
    if wanted.zero > 1:
        found["data-parallel-sharding-strategy"] = _SHARDING[wanted.zero]
    if wanted.model.experts:
        found |= {"expert-model-parallel-size": wanted.ep, "expert-tensor-parallel-size": wanted.etp}
    if wanted.recompute != "none":
        found["recompute-granularity"] = wanted.recompute
    if wanted.recompute == "full":
        found |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    if wanted.recompute == "selective":
        found["recompute-modules"] = " ".join(wanted.recompute_modules)
    return found


def _training_arguments(wanted: TrainedModel, training: Training) -> dict[str, Any]:
    """What Megatron and its fork for DeepSpeed both say."""
    virtual = wanted.virtual
    found: dict[str, Any] = {
        "seq-length": wanted.sequence,
        "max-position-embeddings": wanted.model.table or wanted.sequence,
        "micro-batch-size": wanted.micro_batch,
        "global-batch-size": wanted.global_batch,
        "tensor-model-parallel-size": wanted.tp,
        "pipeline-model-parallel-size": wanted.pp,
        "sequence-parallel": wanted.sequence_parallel,
        "optimizer": {"adam": "adam", "adamw": "adam"}.get(wanted.optimizer, wanted.optimizer),
        "lr": training.lr,
        "adam-beta1": training.beta1,
        "adam-beta2": training.beta2,
        "adam-eps": training.epsilon,
        "weight-decay": training.weight_decay,
        "clip-grad": training.max_norm,
        "bf16": wanted.half == "bf16",
        "fp16": wanted.half == "fp16",
    }
    if virtual > 1 and wanted.schedule is Schedule.INTERLEAVED:
        each = max(wanted.model.layers // (wanted.pp * virtual), 1)
        found["num-layers-per-virtual-pipeline-stage"] = each
    return found


def _model_arguments(model: Architecture, sequence: int) -> dict[str, Any]:
    """A decoder in Megatron's arguments."""
    positions = {PositionKind.LEARNED: "learned_absolute", PositionKind.ROTARY: "rope"}
    found: dict[str, Any] = {
        "num-layers": model.layers,
        "hidden-size": model.width,
        "ffn-hidden-size": model.ffn,
        "num-attention-heads": model.heads,
        "group-query-attention": model.key_heads != model.heads,
        "vocab-size": model.vocabulary,
        "make-vocab-size-divisible-by": 1,
        "tokenizer-type": "NullTokenizer",
        "swiglu": model.gated,
        "normalization": "RMSNorm" if model.rms_norm else "LayerNorm",
        "norm-epsilon": model.epsilon,
        "disable-bias-linear": not model.biases,
        "add-qkv-bias": model.qkv_bias and not model.biases,
        "qk-layernorm": model.head_norm,
        "untie-embeddings-and-output-weights": not model.tied,
        "position-embedding-type": positions.get(model.positions, "none"),
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
    }
    if model.key_heads != model.heads:
        found["num-query-groups"] = model.key_heads
    if model.positions is PositionKind.ROTARY:
        found |= {"rotary-base": model.rotary_base, "rotary-percent": model.rotary_share}
    if model.key_latent:
        found |= {
            "multi-latent-attention": True,
            "kv-lora-rank": model.key_latent,
            "qk-head-dim": model.head_width - model.rotary_key,
            "qk-pos-emb-head-dim": model.rotary_key,
            "v-head-dim": model.value_width,
        }
        if model.query_latent:
            found["q-lora-rank"] = model.query_latent
    else:
        found["kv-channels"] = model.head_width
    return found | (_expert_arguments(model) if model.experts else {})


def _expert_arguments(model: Architecture) -> dict[str, Any]:
    first, layers = model.dense_first, model.layers
    found: dict[str, Any] = {
        "num-experts": model.experts,
        "moe-router-topk": model.choices,
        "moe-ffn-hidden-size": model.expert_ffn,
        "moe-layer-freq": f"[0]*{first}+[1]*{layers - first}" if first else model.expert_every,
        "moe-router-score-function": "sigmoid" if model.sigmoid else "softmax",
        "moe-aux-loss-coeff": model.balance,
        "moe-router-topk-scaling-factor": model.routed_scale,
        "moe-token-dispatcher-type": "alltoall",
        "moe-grouped-gemm": True,
    }
    if model.shared_ffn:
        found["moe-shared-expert-intermediate-size"] = model.shared_ffn
        found["moe-shared-expert-gate"] = model.shared_gate
    if model.groups > 1:
        found |= {"moe-router-num-groups": model.groups, "moe-router-group-topk": model.chosen_groups}
    return found


def _deepspeed(wanted: TrainedModel, training: Training) -> dict[str, Any]:
    return {
        "train_batch_size": wanted.global_batch,
        "train_micro_batch_size_per_gpu": wanted.micro_batch,
        "gradient_clipping": training.max_norm,
        "bf16": {"enabled": wanted.half == "bf16"},
        "fp16": {"enabled": wanted.half == "fp16"},
        "zero_optimization": {"stage": wanted.zero, "overlap_comm": True},
    }


def _called(wanted: TrainedModel, training: Training, name: str) -> dict[str, Any]:
    """Arguments of Megatron-DeepSpeed's script."""
    model = _model_arguments(wanted.model, wanted.sequence)
    own = {"use-flash-attn": True, "deepspeed": True, "deepspeed-config": name, "zero-stage": wanted.zero}
    if wanted.recompute == "full":
        own |= {"checkpoint-activations": True, "deepspeed-activation-checkpointing": True}
    if wanted.cp > 1:
        own["ds-sequence-parallel-size"] = wanted.cp
    arguments = _training_arguments(wanted, training).items()
    without_laps = {key: value for key, value in arguments if not key.startswith("num-layers-per")}
    return {
        "nnodes": max(wanted.gpus // wanted.gpus_per_node, 1),
        "nproc-per-node": min(wanted.gpus_per_node, wanted.gpus),
        **model,
        **without_laps,
        **own,
    }
