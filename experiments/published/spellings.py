"""Spellings: which framework, device and precision a cell names, however it is written.

Case, spaces and punctuation do not tell names apart, nor does the maker before a device's name. What is not known is
none of the tables' names, and never an error: a row is predicted without it, wide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from strategy.hardware.devices import DEVICES, DeviceSheet

FRAMEWORKS = (  # the first that the name starts with
    ("Megatron-DeepSpeed", "megatron-deepspeed"), ("Megatron-Core", "megatron-core"),
    ("Megatron-Bridge (NeMo)", "nemo"), ("Megatron-Bridge", "megatron-bridge"), ("Megatron", "megatron"),
    ("DeepSpeed (HF)", "deepspeed-zero"), ("DeepSpeed", "deepspeed-zero"), ("OneFlow W/O", "oneflow-noclip"),
    ("OneFlow", "oneflow"), ("torchtitan", "torchtitan"), ("llm-foundry", "llm-foundry"), ("InternEvo", "internevo"),
    ("NeMo AutoModel", "nemo-automodel"), ("NeMo (ROCm)", "nemo-rocm"), ("NeMo", "megatron-bridge"),
    ("Primus", "primus"), ("MaxText", "maxtext"), ("NGC MXNet", "mxnet-ngc"), ("MXNet", "mxnet"),
    ("NGC TensorFlow 1.x w/XLA", "tensorflow-xla"), ("NGC TensorFlow", "tensorflow"), ("TensorFlow 2", "tensorflow2"),
    ("NGC PyTorch", "pytorch-ngc"), ("PyTorch FSDP", ""), ("PyTorch", "pytorch"),
    ("PaddlePaddle w/DALI", "paddle-dali"), ("PaddlePaddle", "paddle"),
)  # fmt: skip
PRECISIONS = (  # the first that the recipe, else the dtype, starts with
    ("fp32", "single"), ("float32", "single"), ("mxfp8", "mx8"), ("fp8-mx", "mx8"), ("fp8-rowwise", "row8"),
    ("nvfp4", "four"), ("fp4", "four"), ("fp8", "eight"), ("float8", "eight"), ("amp-fp8", "eight"), ("amp", "half"),
    ("bf16", "half"), ("bfloat16", "half"), ("fp16", "half"), ("float16", "half"), ("half", "half"),
)  # fmt: skip
GPUS = (  # the first that the name starts with, memory in GB where sheets differ by it
    ("V100", "32", "V100-32"), ("V100", "", "V100-16"), ("P100", "", "P100"), ("A100", "40", "A100-40"),
    ("A100", "", "A100-80"), ("A800", "", "A800"), ("H100-96", "", "H100-96"), ("H100-PCIE", "", "H100-PCIE"),
    ("H100", "", "H100"), ("H200-NVL", "", "H200-NVL"), ("H200", "", "H200"),
    *((name, "", name) for name in DEVICES if not name.startswith(("V100", "P100", "A100", "A800", "H100", "H200"))),
    ("TPU7x", "", "TPU-v7x"),
)  # fmt: skip
_LONGEST_FIRST = sorted(GPUS, key=lambda line: -len(line[0]))
_MAKERS = re.compile(r"^(nvidia|tesla|geforce|amd|instinct|intel|google|cloud)")
_YES = {"true": "yes", "on": "yes", "1": "yes", "false": "no", "off": "no", "0": "no"}
_RECOMPUTES = {"yes": "full", "block": "full", "uniform": "full", "no": "none"}
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")
NUMBERS = (
    "gpu_mem_gb", "num_gpus", "gpus_per_node", "inter_bw_Gbps_per_node", "params_b", "layers", "hidden", "heads",
    "kv_heads", "ffn", "seq", "vocab", "dp", "tp", "pp", "vpp", "ep", "cp", "micro_batch", "global_batch",
    "num_microbatches", "etp", "experts", "topk", "moe_ffn", "shared_expert_ffn",
)  # fmt: skip
NONE_AT_ALL = (
    "vpp", "ep", "etp", "cp", "experts", "topk", "moe_ffn", "shared_expert_ffn", "inter_bw_Gbps_per_node",
    "num_microbatches",
)  # fmt: skip
"""Columns in which a 0 says that there is none, as a blank does."""


@lru_cache(maxsize=10_000)
def plain(text: str) -> str:
    """Letters and digits in small letters: what tells names apart."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def named(text: str, table: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The line of a table of names whose name a text starts with."""
    return next((line for line in table if plain(text).startswith(plain(line[0]))), None)


def sheet_named(text: str, memory_gb: str) -> DeviceSheet | None:
    """The data sheet of a device's name, if there is one."""
    name = plain(text)
    while shorter := _MAKERS.match(name):
        name = name[shorter.end() :]
    for start, size, sheet in _LONGEST_FIRST:
        if name.startswith(plain(start)) and (not size or memory_gb.partition(".")[0] == size):
            return DEVICES[sheet]
    return None


def spelled(cells: Mapping[str, str]) -> dict[str, str]:
    """Cells as the tables spell what they say."""
    found = dict(cells)
    for name in NUMBERS:
        if _THOUSANDS.fullmatch(found[name]):
            found[name] = found[name].replace(",", "")
    for name in NONE_AT_ALL:
        if found[name] == "0":
            found[name] = ""
    for name in (
        "dtype",
        "precision_recipe",
        "recompute",
        "schedule",
        "attention_impl",
        "optimizer",
        "grad_accum_dtype",
    ):
        found[name] = found[name].lower()
    for name in ("seq_parallel", "dist_optimizer", "recompute"):
        found[name] = _YES.get(found[name].lower(), found[name].lower())
    found["recompute"] = _RECOMPUTES.get(found["recompute"], found["recompute"])
    known = named(found["framework"], FRAMEWORKS)
    if known is not None:
        found["framework"] = known[0]
    return found
