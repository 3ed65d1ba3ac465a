"""Megatron-Bridge: YAML of a recipe's settings, of overrides of one, or of a matrix of recipes by GPU and precision.

A recipe is of a model that its name tells; so is a file's. What the recipe leaves open is the model's usual sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategy.closed_form.job import MODULES
from strategy.layout.schedule import Schedule
from strategy.trainers.architecture import Architecture
from strategy.trainers.known_models import known_model, known_models, model_in
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

PRECISIONS = {"bf16": "half", "fp8_cs": "eight", "fp8_ds": "eight", "fp8_ss": "row8", "fp8_mx": "mx8", "nvfp4": "four"}
_SHORT = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size", "mbs": "micro_batch_size", "gbs": "global_batch_size",
}  # fmt: skip
_MATRIX = re.compile(r"perf_matrix\.(\w+)\.num_gpus_(\d+)(?:\.(\w+))?")
_LONG_CONTEXT = ("llama3", "llama31", "nemotron")
"""Models whose recipes have sequences of 8,192; those of others have 4,096."""


def is_megatron_bridge(keys: Mapping[str, Any]) -> bool:
    """Whether keys are Megatron-Bridge's."""
    model = keys.get("model")
    nested = isinstance(model, dict) and "tensor_model_parallel_size" in model and "train" in keys
    quantised = "peft" in keys and "checkpoint" in keys and "train" in keys
    return "perf_matrix" in keys or "tensor_model_parallel_size" in keys or nested or quantised


def read_megatron_bridge(settings: Settings, model: Architecture | None = None, gpu: str = "") -> TrainedModel:
    """What Megatron-Bridge's keys say; of a matrix, the part for a GPU."""
    keys = _keys(settings, gpu)

    def count(name: str, default: int | None = None) -> int:
        return settings.count(keys.get(name, name), default)

    name = model_in(settings.where)
    found = model or (known_model(name) if name else None)
    if found is None:
        settings.missing("model", "a file that is named after its model, or --model")
        found = known_models()["llama3-8b"]
    elif model is None:
        settings.assume(f"the model is {name}, after the name of the file")
    tp, pp = count("tensor_model_parallel_size", 1), count("pipeline_model_parallel_size", 1)
    virtual = count("virtual_pipeline_model_parallel_size", 1) if pp > 1 else 1
    if pp == 1:
        settings.pass_over("there is no pipeline", "*virtual_pipeline*", "*.vp", "pp_layout")
    if found.experts:
        ep, etp = count("expert_model_parallel_size", 1), count("expert_tensor_parallel_size", 1)
    else:
        ep = etp = 1
        settings.pass_over("there are no experts", "*expert_*", "*.ep", "*.etp", "moe_*", "*.moe_*")
    kind, modules, layers = _recompute(settings, pp * virtual)
    usual = 8192 if any(part in settings.where for part in _LONG_CONTEXT) else 4096
    sequence = next((key for key in ("model.seq_length", "dataset.seq_length", keys.get("seq_length", "seq_length"),
                                     "ConfigContainer.model.seq_length") if key in settings), "seq_length")  # fmt: skip
    for other in ("model.seq_length", "dataset.seq_length", "ConfigContainer.model.seq_length"):
        if other != sequence:
            settings.pass_over(f"{sequence} says it", other)
    recipe = str(settings.value(keys["precision"], "bf16"))
    if recipe not in PRECISIONS:
        settings.wrong(keys["precision"], recipe, ", ".join(PRECISIONS))
    wide = settings.flag("ConfigContainer.mixed_precision.grad_reduce_in_fp32", True)
    sharded = _sharded(settings, keys)
    adapted = settings.word("peft", {"none": False, "lora": True, "dora": True}, "none")
    rank = settings.maybe("peft.dim") or (16 if adapted else 0)
    if adapted:
        settings.defaults["peft.dim"] = rank
    offloaded = settings.maybe("cpu_offloading_num_layers")
    return TrainedModel(
        trainer=TrainerName.NEMO,
        framework="megatron-bridge",
        model=found,
        sequence=settings.count(sequence, usual),
        micro_batch=count("micro_batch_size", 1),
        global_batch=count("global_batch_size"),
        gpus=int(keys["gpus"]) if "gpus" in keys else settings.maybe("num_gpus") or 0,
        gpus_per_node=count("num_gpus_per_node", 8) if "num_gpus_per_node" in keys else 0,
        tp=tp,
        pp=pp,
        cp=count("context_parallel_size", 1),
        ep=ep,
        etp=etp,
        virtual=virtual,
        schedule=Schedule.INTERLEAVED if virtual > 1 else Schedule.ONE_F_ONE_B,
        zero=3 if sharded else 1,
        sequence_parallel=tp > 1,
        precision=PRECISIONS.get(recipe, "half"),
        gradients="" if wide else "half",
        recompute=kind,
        recompute_modules=modules,
        recompute_layers=layers,
        offload=(f"activations of {offloaded} layers",) if offloaded else (),
        adapter_rank=rank,
    )


def _keys(settings: Settings, gpu: str) -> dict[str, str]:
    """Name -> the key that has it: as it is, nested, or in the part of a matrix for a GPU."""
    nested = {name: f"{part}.{name}" for part in ("model", "train") for name in _SHORT.values()
              if f"{part}.{name}" in settings}  # fmt: skip
    found = [_MATRIX.match(key) for key in settings.values]
    entries = [match for match in found if match]
    if not entries:
        return nested | {"precision": "precision"}
    devices = list(dict.fromkeys(match[1] for match in entries))
    device = gpu.lower() if gpu.lower() in devices else "h100" if "h100" in devices else devices[0]
    gpus = next(match[2] for match in entries if match[1] == device)
    own = f"perf_matrix.{device}.num_gpus_{gpus}"
    settings.assume(f"of the matrix of recipes, that for {gpus} {device.upper()} in bf16")
    keys = {"gpus": gpus, "precision": "precision"}
    names = {**_SHORT, **{name: name for name in ("seq_length", "num_gpus_per_node", "use_megatron_fsdp", "fsdp")}}
    for part in ("common", "bf16"):
        keys |= {full: f"{own}.{part}.{name}" for name, full in names.items() if f"{own}.{part}.{name}" in settings}
    for key in settings.under("perf_matrix"):
        if not key.startswith(f"{own}.common.") and not key.startswith(f"{own}.bf16."):
            settings.pass_over("of another GPU or precision than this one", key)
        elif key not in keys.values() and key.rpartition(".")[2] in names:
            settings.pass_over("the precision's own part says it", key)
    return keys


def _sharded(settings: Settings, keys: Mapping[str, str]) -> bool:
    names = [keys.get(name, name) for name in ("use_megatron_fsdp", "fsdp")]
    return any([settings.flag(name) for name in names])


def _recompute(settings: Settings, stages: int) -> tuple[str, tuple[str, ...], int]:
    """Recipes name modules, or layers of a stage; no modules are none."""
    nested = "ConfigContainer.model.recompute"
    if "recompute_num_layers" in settings:
        return "full", (), settings.count("recompute_num_layers") * stages
    if "recompute_modules" in settings:
        names = settings.words("recompute_modules")
        for name in names:
            if name not in MODULES:
                settings.wrong("recompute_modules", name, ", ".join(MODULES))
        return "selective", tuple(sorted(name for name in names if name in MODULES)), 0
    kinds = {"none": "none", "selective": "selective", "full": "full"}
    kind = settings.word(f"{nested}_granularity", kinds, "none")
    if kind == "none":
        settings.pass_over("nothing is computed again", f"{nested}_*")
        return kind, (), 0
    layers = settings.maybe(f"{nested}_num_layers") or 0
    return kind, ("core_attn",) if kind == "selective" else (), layers * stages if kind == "full" else 0
