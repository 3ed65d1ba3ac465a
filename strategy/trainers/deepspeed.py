"""DeepSpeed: its JSON, and the model, batch and degrees that come from whatever calls it.

These are the arguments of Megatron-DeepSpeed or of a script of Transformers, or a model by name. Where both say the
same, DeepSpeed's file counts. Defaults are those of `deepspeed/runtime/constants.py` and `zero/config.py` (0.17).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strategy.trainers.architecture import Architecture, PositionKind
from strategy.trainers.megatron import is_megatron, read_megatron
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

CONFIG = "deepspeed-config"
USUAL_SEQUENCE = 2048
_DEVICES = {"none": False, "cpu": True, "nvme": True}
_GRADIENTS = {"fp32": "single", "fp16": "half", "bf16": "half"}
_RULES = {
    "Adam": "adam", "AdamW": "adamw", "Lamb": "lamb", "Lion": "lion", "SGD": "sgd", "Muon": "muon",
    "OneBitAdam": "adam", "OneBitLamb": "lamb",
}  # fmt: skip


def is_deepspeed(keys: Mapping[str, Any]) -> bool:
    """Whether keys are DeepSpeed's."""
    return any(key in keys for key in ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"))


def read_deepspeed(
    settings: Settings, caller: Settings | None = None, model: Architecture | None = None, sequence: int = 0
) -> TrainedModel:
    """What DeepSpeed's keys say beside those of its caller; a model without a caller is trained by data parallelism."""
    called = _called(settings, caller, model, sequence)
    stage = settings.count("zero_optimization.stage", 0, least=0)
    if stage > 3:
        settings.wrong("zero_optimization.stage", stage, "0 to 3")
    half = called.half
    if "bf16.enabled" in settings or "fp16.enabled" in settings:
        wide, narrow = settings.flag("bf16.enabled"), settings.flag("fp16.enabled")
        if wide and narrow:
            settings.wrong("fp16.enabled", narrow, "one of bf16 and fp16")
        half = "bf16" if wide else "fp16" if narrow else "single"
    if stage >= 3:
        settings.pass_over("parameters are gathered layer by layer", "zero_optimization.overlap_comm")
        exposed: tuple[str, ...] = ()
    else:
        exposed = () if settings.flag("zero_optimization.overlap_comm") else ("gradients",)
    megatron = called.trainer is TrainerName.MEGATRON
    return replace(
        called,
        trainer=TrainerName.DEEPSPEED,
        framework="megatron-deepspeed" if megatron else "",
        **_batch(settings, called, shares_out=caller is None),
        precision="single" if half == "single" else "half",
        half=half,
        zero=stage,
        gradients=settings.word("data_types.grad_accum_dtype", _GRADIENTS, "bf16")
        if "data_types.grad_accum_dtype" in settings
        else called.gradients,
        optimizer=settings.word("optimizer.type", _RULES, "Adam") if "optimizer.type" in settings else called.optimizer,
        exposed=exposed,
        offload=tuple(sorted({*called.offload, *_offload(settings, stage)})),
    )


def _called(settings: Settings, caller: Settings | None, model: Architecture | None, sequence: int) -> TrainedModel:
    """What the caller says."""
    if caller is None:
        if model is None:
            hint = "give --model: the arguments of the script that calls DeepSpeed, a preset or a config.json"
            settings.missing("model", f"a model, which DeepSpeed's file does not name; {hint}")
            model = Architecture(1, 1, 1, 1, 1, 1, 1)
        length = sequence or model.table or USUAL_SEQUENCE
        if not sequence:
            settings.defaults["sequence"] = length
        settings.assume("without a caller's arguments the only parallelism is over samples")
        half = _left_to_the_caller(settings)
        return TrainedModel(TrainerName.DEEPSPEED, model, length, 1, micro_batches=1, half=half)
    if is_megatron(caller.values):
        for name, keys in _SAME.items():
            if any(key in settings for key in keys):
                caller.set_aside("DeepSpeed's file says it", name)
        for name in ("micro-batch-size", "global-batch-size"):
            if (said := settings.values.get(_SAME[name][0])) is not None:
                caller.values[name] = said
        found = read_megatron(caller, model, fork=True)
        caller.pass_over("DeepSpeed's own file says it", "zero-stage", CONFIG, "deepspeed")
        return found
    return _transformers(caller, model)


def _left_to_the_caller(settings: Settings) -> str:
    """The precision, where it and the batch are `auto` and no caller says them; what is taken for them is stated."""
    said = "bf16.enabled" in settings or "fp16.enabled" in settings
    open_halves = [half for half in ("bf16", "fp16") if f"{half}.enabled" in settings.left_open]
    half = "single" if said or not open_halves else open_halves[0]
    taken = {f"{one}.enabled": str(one == half).lower() for one in open_halves if not said}
    whole = "train_batch_size" in settings
    taken["train_micro_batch_size_per_gpu"] = "each rank's part of train_batch_size" if whole else "1"
    taken["gradient_accumulation_steps"] = "1"
    for key in sorted(taken.keys() & settings.left_open):
        settings.assume(f'{key} is "auto", which only the caller says (give its arguments by --model): {taken[key]}')
    return half


_SAME: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16.enabled", "fp16.enabled"),
    "fp16": ("bf16.enabled", "fp16.enabled"),
    "zero-stage": ("zero_optimization.stage",),
    "cpu-optimizer": ("zero_optimization.offload_optimizer.device", "zero_optimization.cpu_offload"),
    "micro-batch-size": ("train_micro_batch_size_per_gpu",),
    "global-batch-size": ("train_batch_size",),
    "rampup-batch-size": ("train_batch_size",),
}
"""Arguments of a caller that DeepSpeed's keys say, too."""


def _transformers(caller: Settings, model: Architecture | None) -> TrainedModel:
    """A causal language model of Transformers' example scripts: GPT-2 with other figures."""
    figures = _overrides(caller)
    table = int(figures["n_positions"])
    if model is None:
        caller.word("model-type", {"gpt2": 1}, "gpt2")
        caller.pass_over("the type of the model says it", "tokenizer-name")
        width, heads, layers = (int(figures[key]) for key in ("n_embd", "n_head", "n_layer"))
        model = Architecture(
            layers, width, heads, heads, width // heads, 4 * width, 50257, tied=True, biases=True, qkv_bias=True,
            positions=PositionKind.LEARNED, table=table,
        )  # fmt: skip
    again = figures.get("gradient_checkpointing") == "true" or caller.flag("gradient-checkpointing")
    one_node, nodes = caller.maybe("nproc-per-node") or 0, caller.maybe("nnodes") or 0
    half = "bf16" if caller.flag("bf16") else "fp16" if caller.flag("fp16") else "single"
    return TrainedModel(
        TrainerName.DEEPSPEED,
        model,
        table,
        caller.count("per-device-train-batch-size", 8),
        micro_batches=caller.count("gradient-accumulation-steps", 1),
        gpus=one_node * nodes,
        gpus_per_node=one_node,
        half=half,
        recompute="full" if again else "none",
        fused_attention=False,
    )


def _overrides(caller: Settings) -> dict[str, str]:
    """GPT-2's configuration with what an argument overrides."""
    key = "config-overrides"
    found = {"n_embd": "768", "n_head": "12", "n_layer": "12", "n_positions": "1024"}
    for part in filter(None, str(caller.value(key, "")).split(",")):
        name, _, value = part.partition("=")
        sizes = name in found and value.isdecimal() and int(value) > 0
        if not sizes and name not in ("gradient_checkpointing", "use_cache"):
            caller.wrong(key, part, "sizes n_embd, n_head, n_layer, n_positions; gradient_checkpointing; use_cache")
        else:
            found[name] = value
    return found


def _batch(settings: Settings, called: TrainedModel, *, shares_out: bool) -> dict[str, Any]:
    """Samples of a step or its micro-batches, and of one of these; the batch of a step alone is shared out evenly."""
    micro, whole, times = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"
    found: dict[str, Any] = {"micro_batch": settings.count(micro) if micro in settings else called.micro_batch}
    if whole in settings and micro not in settings and shares_out:
        count = settings.count(times) if times in settings else 1
        return {"micro_batch": 0, "global_batch": settings.count(whole), "micro_batches": count}
    if whole in settings:
        settings.pass_over("train_batch_size says it", times)
        return found | {"global_batch": settings.count(whole), "micro_batches": 0}
    if times in settings and not called.global_batch:
        return found | {"global_batch": 0, "micro_batches": settings.count(times)}
    settings.pass_over("the caller says it", times)
    return found | {"global_batch": called.global_batch, "micro_batches": called.micro_batches}


def _offload(settings: Settings, stage: int) -> list[str]:
    """What waits on the host; DeepSpeed offloads states that ZeRO shares out, and parameters at stage 3 alone."""
    group = "zero_optimization"
    found: list[str] = []
    if stage == 0:
        settings.pass_over("nothing is shared out", f"{group}.cpu_offload", f"{group}.offload_*")
        return found
    if settings.flag(f"{group}.cpu_offload"):
        found.append("optimizer")
    if settings.word(f"{group}.offload_optimizer.device", _DEVICES, "none"):
        found.append("optimizer")
    if stage < 3:
        settings.pass_over("parameters are not shared out", f"{group}.offload_param.*")
    elif settings.word(f"{group}.offload_param.device", _DEVICES, "none"):
        found.append("parameters")
    return found
