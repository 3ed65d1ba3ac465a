"""torchtitan: TOML of its releases up to 0.2, and its Python configurations from 0.3 on, by name or as JSON.

A Python configuration is named on a command line, with overrides: `--module llama3 --config llama3_8b
--parallelism.tensor_parallel_degree 2`; what the named ones say stands in `torchtitan_recipes.json`. Models are named
by family and flavour. Defaults are those of `torchtitan/config/job_config.py` (release 0.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from strategy.base.errors import InputError, did_you_mean
from strategy.layout.schedule import Schedule
from strategy.trainers.architecture import Architecture
from strategy.trainers.formats import flattened
from strategy.trainers.known_models import known_model, known_models
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

SCHEDULES = {
    "1F1B": Schedule.ONE_F_ONE_B,
    "GPipe": Schedule.GPIPE,
    "Interleaved1F1B": Schedule.INTERLEAVED,
    "ZBVZeroBubble": Schedule.ZBV,
}
"""Words of `pipeline_parallel_schedule` that we have."""
_FAMILIES = {"llama2": "", "deepseek_v2": ""}
_HALVES = {"bfloat16": "bf16", "float16": "fp16", "float32": "single"}
_OLD = ("training", "experimental")
RENAMED = {
    "training.seq_len": "training.max_context_length",
    "training.local_batch_size": "training.num_tokens_per_microbatch_per_dp_rank",
}
"""Keys of releases before the named configurations' -> what says the same in these."""
PARALLELISM = "parallelism"
LAPS = 2
"""Stages per device of schedules with several, where the file does not say how many layers a stage has."""


def is_torchtitan(keys: Mapping[str, Any]) -> bool:
    """Whether keys are torchtitan's."""
    flavour = isinstance(keys.get("model"), dict) and "flavor" in keys["model"]
    return flavour or "model_spec" in keys or ("module" in keys and "config" in keys)


@cache
def recipes() -> Mapping[str, Mapping[str, Any]]:
    """Name -> the flat keys of a Python configuration."""
    text = (resources.files("strategy.trainers") / "torchtitan_recipes.json").read_text(encoding="utf-8")
    return {name: flattened(document) for name, document in json.loads(text).items()}


def overridden(arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A named configuration with what the arguments override.

    Raises:
        InputError: no such configuration is known.
    """
    name = str(arguments["config"])
    if name not in recipes():
        hint = did_you_mean(name, recipes())
        raise InputError("no such configuration is known", where=f"{where}: --config", got=name, hint=hint)
    overrides = {key.replace("-", "_"): value for key, value in arguments.items() if key not in ("config", "module")}
    said = {RENAMED[key] for key in overrides.keys() & RENAMED.keys()}
    named = {key: value for key, value in recipes()[name].items() if key not in said}
    return {**named, **overrides, "module": arguments["module"]}


def read_torchtitan(settings: Settings, model: Architecture | None = None) -> TrainedModel:
    """What torchtitan's keys say."""
    for key in settings.values:
        if key.endswith("_type") and key not in ("activation_checkpoint._type",):
            settings.pass_over("the name of a class", key)
    found = _model(settings) if model is None else model
    sequence = settings.count("training.max_context_length" if "training.max_context_length" in settings
                              else "training.seq_len", 2048)  # fmt: skip
    degree = {axis: _degree(settings, f"{axis}_degree") for axis in ("tensor_parallel", "pipeline_parallel",
                                                                      "context_parallel")}  # fmt: skip
    tp, pp, cp = degree.values()
    replicas = _degree(settings, "data_parallel_replicate_degree")
    shards = _shards(settings)
    zero = _zero(settings, pp) if shards != 1 else 0
    schedule, virtual = _schedule(settings, found, pp)
    if found.experts:
        ep = _degree(settings, "expert_parallel_degree")
        etp = _degree(settings, "expert_tensor_parallel_degree")
    else:
        ep = etp = 1
        settings.pass_over("there are no experts", "parallelism.expert_*")
    kind, modules, layers = _recompute(settings, found)
    precision = _precision(settings)
    local = _local_batch(settings, sequence)
    micro = settings.count("parallelism.pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    if pp > 1 and local % micro:
        settings.wrong("parallelism.pipeline_parallel_microbatch_size", micro, f"a divisor of {local} samples")
    batch = settings.value("training.global_batch_size")
    whole = settings.count("training.global_batch_size") if batch not in (None, -1) else 0
    launched = (settings.maybe("nproc_per_node") or 0) * (settings.maybe("nnodes") or 0)
    half = settings.word("training.mixed_precision_param", _HALVES, "bfloat16")
    return TrainedModel(
        trainer=TrainerName.TORCHTITAN,
        model=found,
        sequence=sequence,
        micro_batch=micro,
        global_batch=whole,
        micro_batches=0 if whole else local // micro,
        gpus=replicas * shards * tp * pp * cp if shards else launched,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp,
        virtual=virtual,
        schedule=schedule,
        zero=zero,
        replicas=replicas if zero else 1,
        sequence_parallel=tp > 1,
        precision="single" if half == "single" else precision,
        half=half,
        gradients=_gradients(settings),
        optimizer=settings.word("optimizer.name", {"AdamW": "adamw", "Adam": "adam"}, "AdamW"),
        recompute=kind,
        recompute_modules=modules,
        recompute_layers=layers,
    )


def _model(settings: Settings) -> Architecture:
    """The model that family and flavour name."""
    if "model_spec._args" in settings:
        return _registered(settings)
    if settings.values.get("model.name") == "transformers_modeling_backend":
        settings.value("model.name")
        settings.value("model.flavor")
        if settings.word("model.flavor", {"debugmodel": True, "full": False}, "full"):
            settings.pass_over("the flavour of the model says it", "hf_transformers.*")
            return known_models()["torchtitan/qwen3/debugmodel"]
        key = "hf_transformers.model"
        return _found(settings, key, known_model(str(settings.value(key, ""))))
    flavour = str(settings.value("model.flavor", "debugmodel"))
    if "/" in flavour:
        settings.pass_over("the flavour of the model says it", "model.name")
        return _found(settings, "model.flavor", known_model(flavour))
    family = str(settings.value("model.name", "llama3"))
    family = "llama3" if family == "llama3_ft" else family
    name = f"{family}-{flavour.lower()}" if family in _FAMILIES else f"torchtitan/{family}/{flavour}"
    return _found(settings, "model.flavor", known_models().get(name), name)


def _registered(settings: Settings) -> Architecture:
    """The model of a Python configuration: a flavour, of the family that its module or its assets name."""
    spec = settings.value("model_spec._args")
    flavour = str(spec[0]) if isinstance(spec, list) and len(spec) == 1 else str(spec)
    settings.pass_over("the flavour of the model says it", "loss.*")
    names = [name for name in known_models() if name.startswith("torchtitan/") and name.endswith(f"/{flavour}")]
    if len(names) > 1:
        key = "module" if "module" in settings else "hf_assets_path"
        plain = str(settings.value(key, "")).lower().replace("-", "").replace("_", "")
        plain = "llama3" if "tests/assets" in plain else plain
        names = [name for name in names if name.split("/")[1].replace("_", "") in plain]
    if len(names) == 1:
        settings.assume(f"the model is {names[0]}, after its flavour and its module or assets")
    return _found(settings, "model_spec._args", known_models()[names[0]] if len(names) == 1 else None, flavour)


def _found(settings: Settings, key: str, model: Architecture | None, name: str = "") -> Architecture:
    """The model, if there is one."""
    if model is not None:
        return model
    known = [one for one in known_models() if one.startswith("torchtitan/")]
    name = name or str(settings.values.get(key, ""))
    settings.wrong(key, name, "a model that is known", hint=did_you_mean(name, known))
    return known_models()["torchtitan/llama3/debugmodel"]


def _key(settings: Settings, name: str) -> str:
    """The key of this name, where it was in older releases if it stands there."""
    return next((f"{old}.{name}" for old in _OLD if f"{old}.{name}" in settings), f"{PARALLELISM}.{name}")


def _degree(settings: Settings, name: str) -> int:
    return settings.count(_key(settings, name), 1)


def _shards(settings: Settings) -> int:
    """Ranks that share out everything; 0 is all that are left."""
    key = _key(settings, "data_parallel_shard_degree")
    return 0 if settings.value(key, -1) in (-1, "-1") else settings.count(key)


_ENDS = tuple(f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
"""Layers that the embedding, and that the head, count as."""


def _schedule(settings: Settings, model: Architecture, pp: int) -> tuple[Schedule, int]:
    if pp == 1:
        settings.pass_over("there is no pipeline", "parallelism.pipeline_parallel_*")
        return Schedule.ONE_F_ONE_B, 1
    schedule = settings.word("parallelism.pipeline_parallel_schedule", SCHEDULES, "1F1B")
    if schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):
        settings.pass_over("one stage per device", "parallelism.pipeline_parallel_layers_per_stage")
        settings.pass_over("layers are taken to be dealt out evenly", *_ENDS)
        return schedule, 1
    each = settings.maybe("parallelism.pipeline_parallel_layers_per_stage")
    if schedule is Schedule.ZBV or each is None:
        settings.pass_over("two stages per device", "parallelism.pipeline_parallel_layers_per_stage")
        settings.pass_over("layers are taken to be dealt out evenly", *_ENDS)
        return schedule, LAPS
    others = sum(settings.count(key, 1, least=0) for key in _ENDS)
    stages = -(-(model.layers + others) // each)
    if stages % pp:
        settings.wrong("parallelism.pipeline_parallel_layers_per_stage", each, f"a multiple of {pp} stages")
    return schedule, max(stages // pp, 1)


def _zero(settings: Settings, pp: int) -> int:
    """Parameters are gathered again for the backward pass, by default where there is no pipeline."""
    key = _key(settings, "fsdp_reshard_after_forward")
    return settings.word(key, {"default": 3 if pp == 1 else 2, "always": 3, "never": 2}, "default")


def _recompute(settings: Settings, model: Architecture) -> tuple[str, tuple[str, ...], int]:
    kinds = {"none": "none", "selective": "selective", "full": "full"}
    if "activation_checkpoint._type" in settings:
        typed = {"FullAC.Config": "full", "SelectiveAC.Config": "selective", "MemoryBudgetAC.Config": "none"}
        kind = settings.word("activation_checkpoint._type", typed, "SelectiveAC.Config")
        return kind, ("per-op",) if kind == "selective" else (), 0
    if "model_spec._args" in settings:
        kind = settings.word("activation_checkpoint.mode", kinds, "none")
    else:
        kind = settings.word("activation_checkpoint.mode", kinds, "selective")
    if kind != "selective":
        settings.pass_over("nothing is selected", "activation_checkpoint.*selective*", "activation_checkpoint.per_op*")
        return kind, (), 0
    option = str(settings.value("activation_checkpoint.selective_ac_option", "2"))
    if option == "op":
        return kind, ("per-op",), 0
    if not option.isdecimal() or int(option) < 1:
        settings.wrong("activation_checkpoint.selective_ac_option", option, "op, or every how-many-th layer")
        return kind, ("per-op",), 0
    return "full", (), max(model.layers // int(option), 1)


def _precision(settings: Settings) -> str:
    """Precision of products; converters put them into 8 bits."""
    converters = settings.value("model.converters") or settings.value("model_spec.converters") or []
    old = settings.flag("float8.enable_float8_linear")
    names = [str(one["_type"] if isinstance(one, dict) else one).lower() for one in converters]
    if strange := [name for name in names if not name.startswith(("float8", "mx", "quantize.", "lora"))]:
        settings.wrong("model.converters", strange[0], "float8 or mx")
    if any(name.startswith("mx") or ".mx" in name for name in names):
        return "mx8"
    if not any("float8" in name for name in names) and not old:
        settings.pass_over("nothing is in 8 bits", "quantize.*", "float8.*")
        return "half"
    key = "float8.recipe_name" if "float8.recipe_name" in settings else "quantize.linear.float8.recipe_name"
    return settings.word(key, {"tensorwise": "eight", "rowwise": "row8", "rowwise_with_gw_hp": "row8"}, "tensorwise")


def _gradients(settings: Settings) -> str:
    reduced = settings.word("training.mixed_precision_reduce", {"float32": "", "bfloat16": "half"}, "float32")
    return reduced


def _local_batch(settings: Settings, sequence: int) -> int:
    key = "training.num_tokens_per_microbatch_per_dp_rank"
    if key in settings:
        tokens = settings.count(key)
        if tokens % sequence:
            settings.wrong(key, tokens, f"a multiple of {sequence} positions")
        return max(tokens // sequence, 1)
    return settings.count("training.batch_size" if "training.batch_size" in settings else "training.local_batch_size",
                          8)  # fmt: skip
