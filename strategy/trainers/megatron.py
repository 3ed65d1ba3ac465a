"""Megatron-LM and Megatron-DeepSpeed: arguments of `pretrain_gpt.py` and its kin, as a command line or as YAML.

YAML is that of Megatron's own tests: `MODEL_ARGS`, `ENV_VARS` and `NUM_GPUS`. Defaults are those of
`megatron/training/arguments.py` (Megatron-Core 0.16). What the model is follows in `megatron_model`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategy.closed_form.job import MODULES
from strategy.layout.schedule import Schedule
from strategy.trainers.architecture import Architecture
from strategy.trainers.formats import flattened
from strategy.trainers.megatron_model import megatron_model
from strategy.trainers.settings import Settings
from strategy.trainers.trained import TrainedModel, TrainerName

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
SCALING = {"delayed": "eight", "tensorwise": "eight", "blockwise": "row8", "mxfp8": "mx8", "custom": "eight"}
_LAYOUT = re.compile(r"\(([^()]*)\)\*(\d+)|([a-zA-Z])\*(\d+)")

_UNEVEN = (
    *("pipeline-model-parallel-layout", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"),
    *("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "encoder-num-layers"),
    *("pipeline-model-parallel-split-rank", "mtp-num-layers"),
)
"""Arguments that cut layers unevenly."""


def is_megatron(keys: Mapping[str, Any]) -> bool:
    """Whether keys are Megatron's arguments."""
    named = "num-layers" in keys or "tensor-model-parallel-size" in keys
    return "MODEL_ARGS" in keys or named or ("hidden-size" in keys and "num-attention-heads" in keys)


def arguments_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a document, without dashes; variables of the environment as `env.NAME`."""
    if "MODEL_ARGS" not in document:
        flat = flattened(document)
        return {key if key.startswith("shell.") else key.replace("_", "-"): value for key, value in flat.items()}
    found = {key.lstrip("-").replace("_", "-"): value for key, value in (document["MODEL_ARGS"] or {}).items()}
    found |= {f"env.{key}": value for key, value in (document.get("ENV_VARS") or {}).items()}
    others = {key: value for key, value in document.items() if key not in ("MODEL_ARGS", "ENV_VARS")}
    return found | flattened(others)


def read_megatron(settings: Settings, model: Architecture | None = None, *, fork: bool = False) -> TrainedModel:
    """What Megatron's arguments say; `model` is there where they name none, `fork` is Megatron-DeepSpeed's."""
    sequence = _sequence(settings)
    tp = settings.count("tensor-model-parallel-size", 1)
    found = megatron_model(settings, sequence, tp) if model is None else model
    pp = settings.count("pipeline-model-parallel-size", 1)
    if not fork and found.layers % pp and not found.pattern and not any(key in settings for key in _UNEVEN):
        settings.assume(
            f"stages of unlike lengths, though Megatron asks for a divisor of {found.layers} layers: pp {pp}"
        )
    virtual = _virtual(settings, found, pp)
    recompute, modules, layers = _recompute(settings, pp * virtual)
    micro = settings.count("micro-batch-size")
    precision, half = _precision(settings)
    zero = _zero(settings)
    if found.experts:
        etp = settings.count("expert-tensor-parallel-size", tp)
        ep = settings.count("expert-model-parallel-size", settings.maybe("moe-expert-parallel-size") or 1)
    else:
        ep = etp = 1
        settings.pass_over("there are no experts", "expert-*", "moe-*", "create-moe-param-group", "*moe-token-dropping")
    one_node = settings.maybe("nproc-per-node") or 0
    nodes = settings.maybe("nnodes") or 0
    own = not fork and _own_modules(settings)
    return TrainedModel(
        trainer=TrainerName.MEGATRON,
        model=found,
        sequence=sequence,
        micro_batch=micro,
        **_batch(settings),
        gpus=settings.maybe("NUM_GPUS") or one_node * nodes,
        gpus_per_node=one_node,
        tp=tp,
        pp=pp,
        cp=_context(settings),
        ep=ep,
        etp=etp,
        virtual=virtual,
        schedule=Schedule.INTERLEAVED if virtual > 1 else Schedule.ONE_F_ONE_B,
        zero=zero,
        replicas=settings.count("num-distributed-optimizer-instances", 1) if zero else 1,
        sequence_parallel=_sequence_parallel(settings, tp),
        precision=precision,
        half=half,
        gradients=_gradients(settings),
        optimizer=_optimizer(settings),
        recompute=recompute,
        recompute_modules=modules,
        recompute_layers=layers,
        fused_attention=_fused(settings, own=own or fork),
        own_kernels=own,
        deterministic=settings.flag("deterministic-mode"),
        exposed=_exposed(settings, zero),
        offload=_offload(settings),
    )


def _sequence(settings: Settings) -> int:
    if "seq-length" not in settings and "encoder-seq-length" in settings:
        return settings.count("encoder-seq-length")
    return settings.count("seq-length")


def _batch(settings: Settings) -> dict[str, Any]:
    if "step-batch-size-schedule" in settings:
        steps = settings.words("step-batch-size-schedule")
        last = steps[-1].rpartition(":")[2] if steps else ""
        settings.assume("the step that is priced is one of the last batch of step-batch-size-schedule")
        if not last.isdecimal() or not int(last):
            settings.wrong("step-batch-size-schedule", steps, "FROM:BATCH ..., such as 0:384 200B:768")
            last = "1"
        settings.pass_over("step-batch-size-schedule says it", "global-batch-size")
        return {"global_batch": int(last)}
    if "global-batch-size" in settings:
        settings.pass_over("the step that is priced is one of the full batch", "rampup-batch-size")
        return {"global_batch": settings.count("global-batch-size")}
    settings.defaults["global-batch-size"] = "one micro-batch of every rank"
    return {"micro_batches": 1}


def _virtual(settings: Settings, model: Architecture, pp: int) -> int:
    """Runs of layers per device."""
    layers = model.layers
    if "pipeline-model-parallel-layout" in settings:
        text = str(settings.value("pipeline-model-parallel-layout"))
        while (whole := _LAYOUT.sub(lambda m: (m[1] or m[3]) * int(m[2] or m[4]), text)) != text:
            text = whole
        stages = text.count("|") + 1
        if set(text) - set("EtmL|") or stages % pp or text.count("t") != layers:
            got = settings.value("pipeline-model-parallel-layout")
            settings.wrong("pipeline-model-parallel-layout", got, f"a multiple of {pp} stages with {layers} t in all")
            return 1
        settings.pass_over("the layout of the pipeline says it", "num-*virtual*")
        return stages // pp
    if "num-virtual-stages-per-pipeline-rank" in settings:
        return settings.count("num-virtual-stages-per-pipeline-rank")
    if "num-layers-per-virtual-pipeline-stage" in settings:
        each = settings.count("num-layers-per-virtual-pipeline-stage")
        if pp == 1:
            return 1
        if layers % (pp * each):
            settings.wrong("num-layers-per-virtual-pipeline-stage", each, f"a divisor of {layers} layers / {pp} stages")
            return 1
        return layers // (pp * each)
    cut = model.pattern.count("|")
    return (cut + 1) // pp if cut and (cut + 1) % pp == 0 else 1


def _context(settings: Settings) -> int:
    """Ranks that share a sequence; Megatron-DeepSpeed calls exchanging heads for positions sequence parallel."""
    cp = settings.count("context-parallel-size", 1)
    if "ds-sequence-parallel-size" in settings:
        settings.assume("exchanging heads for positions is priced as context parallelism")
        return settings.count("ds-sequence-parallel-size")
    return cp


def _sequence_parallel(settings: Settings, tp: int) -> bool:
    if tp == 1:
        settings.pass_over("there is no tensor parallelism", "sequence-parallel", "*tp-comm-overlap*")
        return False
    return settings.flag("sequence-parallel")


def _precision(settings: Settings) -> tuple[str, str]:
    """Precision of products and of the rest."""
    half = "bf16" if settings.flag("bf16") else "fp16" if settings.flag("fp16") else "single"
    if "fp4-format" in settings:
        settings.word("fp4-format", {"e2m1": 4}, "e2m1")
        return "four", half
    if "fp8-format" in settings or "fp8" in settings:
        key = "fp8-format" if "fp8-format" in settings else "fp8"
        settings.word(key, {"e4m3": 8, "hybrid": 8}, "hybrid")
        if settings.word(key, {"e4m3": 1, "hybrid": 0}, "hybrid"):
            settings.assume("gradients in e4m3 are priced as those in e5m2")
        return settings.word("fp8-recipe", SCALING, "delayed"), half
    settings.pass_over("nothing is in 8 bits", "fp8-*", "first-last-layers-bf16", "num-layers-at-*-in-bf16")
    return ("single" if half == "single" else "half"), half


def _zero(settings: Settings) -> int:
    """The stage of ZeRO that Megatron's ways of sharing come to."""
    if settings.flag("use-torch-fsdp2") or settings.flag("use-megatron-fsdp"):
        settings.pass_over("the way of sharing says it", "use-distributed-optimizer")
    if settings.flag("use-torch-fsdp2"):
        return 3
    if settings.flag("use-megatron-fsdp"):
        return settings.word("data-parallel-sharding-strategy", SHARDING, "no_shard")
    return 1 if settings.flag("use-distributed-optimizer") else 0


def _gradients(settings: Settings) -> str:
    """How gradients are added up: narrow if any argument says so."""
    if settings.flag("grad-reduce-in-bf16"):
        return "half"
    for key in ("megatron-fsdp-main-grads-dtype", "main-grads-dtype"):
        if key in settings:
            return settings.word(key, {"bf16": "half", "fp16": "half", "fp32": "single"}, "fp32")
    if settings.flag("accumulate-allreduce-grads-in-fp32"):
        return "single"
    return ""


def _optimizer(settings: Settings) -> str:
    known = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon", "lamb": "lamb"}
    return settings.word("optimizer", known, "adam")


def _recompute(settings: Settings, stages: int) -> tuple[str, tuple[str, ...], int]:
    """What is computed again, of which modules, in how many layers (0: all)."""
    if settings.flag("checkpoint-activations"):
        return "full", (), 0
    if settings.flag("recompute-activations"):
        return "selective", ("core_attn",), 0
    kinds = {"none": "none", "selective": "selective", "full": "full"}
    kind = settings.word("recompute-granularity", kinds, "none")
    if kind == "selective":
        modules = settings.words("recompute-modules", ("core_attn",))
        if strange := [name for name in modules if name not in MODULES]:
            settings.wrong("recompute-modules", strange[0], ", ".join(MODULES))
        settings.pass_over("modules are computed again, not layers", "recompute-method", "recompute-num-layers")
        return kind, tuple(sorted(name for name in modules if name in MODULES)), 0
    if kind == "none":
        settings.pass_over("nothing is computed again", "recompute-*", "distribute-saved-activations")
        return kind, (), 0
    method = settings.word("recompute-method", {"uniform": "uniform", "block": "block"}, "uniform")
    count = settings.count("recompute-num-layers", 1)
    return kind, (), count * stages if method == "block" else 0


def _own_modules(settings: Settings) -> bool:
    kinds = {"local": True, "transformer_engine": False, "inference_optimized": False}
    return settings.word("transformer-impl", kinds, "transformer_engine")


def _fused(settings: Settings, *, own: bool) -> bool:
    """Whether attention keeps no scores: Transformer Engine's does not, that of Megatron's own modules does."""
    if not own:
        settings.pass_over("Transformer Engine's attention is fused", "use-flash-attn*")
    if "attention-backend" in settings:
        settings.pass_over("attention-backend says it", "use-flash-attn*")
        return settings.word(
            "attention-backend", {"auto": True, "flash": True, "fused": True, "unfused": False, "local": False}, "auto"
        )
    if not own:
        return True
    if settings.flag("use-flash-attn"):
        settings.pass_over("use-flash-attn says it", "use-flash-attn-triton")
        return True
    return settings.flag("use-flash-attn-triton")


def _exposed(settings: Settings, zero: int) -> tuple[str, ...]:
    """Exchanges that nothing overlaps: those of gradients, unless the arguments say that they do."""
    if zero >= 3:
        settings.pass_over("parameters are shared out layer by layer", "overlap-grad-reduce", "overlap-param-gather")
        return ()
    return () if settings.flag("overlap-grad-reduce") else ("gradients",)


def _offload(settings: Settings) -> tuple[str, ...]:
    found = []
    if settings.flag("optimizer-cpu-offload") or settings.flag("cpu-optimizer"):
        found.append("optimizer")
    if settings.flag("fine-grained-activation-offloading"):
        found.append("activations")
    return tuple(found)
