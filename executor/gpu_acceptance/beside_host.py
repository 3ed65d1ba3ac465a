"""Part of acceptance: small models of every family, and of every precision, learn as they do on the processor.

The same plan trains twice, by CuPy and by NumPy. Nothing is timed, so that several trainings share the device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import CALM, folder_of_plans, make_plan, train
from executor.gpu_acceptance.outcome import Figures, PartFailed
from strategy.base.files import write_atomic

_STEPS = 6
_AT_ONCE = 2
"""Trainings, where there are as many pairs of cores: of more than two on one device each takes longer than in turn."""
_MOST = {"full": 1e-4, "bf16": 2e-3, "fp16": 5e-3}
_MOST_OF_CODES = 5e-3
"""Of the difference of losses: a code that falls otherwise is an eighth of its figure."""
_WIDTH, _INNER, _HEADS, _POSITIONS, _CLASSES = 64, 128, 4, 64, 256
_DECODER: Mapping[str, object] = {
    "hidden_size": _WIDTH,
    "intermediate_size": _INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 2,
    "vocab_size": _CLASSES,
    "max_position_embeddings": _POSITIONS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, Mapping[str, object]] = {
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": _INNER,
        "head_dim": _WIDTH // _HEADS,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
}
"""Models of experts that drop nothing: what each kind of configuration says beside `_DECODER`."""


@dataclass(frozen=True, slots=True)
class Small:
    """A training of a few steps: a preset, or a configuration in Hugging Face's keys."""

    model: str
    precision: str = "full"
    batch: int = 8
    degrees: Mapping[str, int] = field(default_factory=lambda: {"dp": 1, "tp": 1, "pp": 1})

    @property
    def name(self) -> str:
        """For tables."""
        split = "".join(f" {key}{value}" for key, value in self.degrees.items() if value > 1)
        return f"{self.model} {self.precision}{split}"

    @property
    def most(self) -> float:
        """That losses may differ by, as a part of them."""
        return _MOST.get(self.precision, _MOST_OF_CODES)


_FAMILIES = ("arcface", "bert", "llama", "mixtral", "resnet", "vgg", "vit", "wide-and-deep")
_PRECISIONS = ("full", "bf16", "fp16", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4")
_SPLIT = {"dp": 2, "tp": 1, "pp": 1}
SMALL_TRAININGS = (
    *(Small(f"{family}-tiny") for family in _FAMILIES),
    *(Small("gpt-tiny", precision) for precision in _PRECISIONS),
    *(Small(kind, precision) for kind in _EXPERTS for precision in ("full", "bf16")),
    Small("mixtral", "bf16", degrees=_SPLIT),
    *(Small("gpt-tiny", precision, degrees=_SPLIT) for precision in ("fp8-current", "mxfp8")),
)


def beside_host(bench: Bench) -> Figures:
    """Losses of both, and by how much they differ."""
    with folder_of_plans() as folder, ThreadPoolExecutor(_at_once()) as pool:
        folders = [folder / str(number) for number in range(len(SMALL_TRAININGS))]
        found = list(pool.map(partial(_differs, bench), folders, SMALL_TRAININGS))
    figures = {small.name: one for small, one in zip(SMALL_TRAININGS, found, strict=True)}
    problems = [
        f"{small.name} {one.get('problem') or 'is off by {:.2g}'.format(one['differs'])}"
        for small, one in zip(SMALL_TRAININGS, found, strict=True)
        if not one.get("differs", 1.0) <= small.most
    ]
    if problems:
        raise PartFailed("; ".join(problems), figures)
    return figures


def _at_once() -> int:
    return max(1, min(_AT_ONCE, (os.cpu_count() or 1) // 2))


def _differs(bench: Bench, folder: Path, small: Small) -> dict[str, Any]:
    """Losses of a training on the device and on the host; or what went wrong, which must not hide the others."""
    folder.mkdir()
    found: dict[str, Any] = {}
    try:
        model = _model(small.model, folder)
        plan = make_plan(bench, folder, model, small.degrees, batch=small.batch, precision=small.precision, recipe=CALM)
        for backend in ("numpy", "cupy"):
            found[backend] = [report["loss"] for report in train(bench, plan, steps=_STEPS, backend=backend)[0]]
    except PartFailed as failure:
        return found | {"problem": str(failure)}
    pairs = zip(found["cupy"], found["numpy"], strict=True)
    return found | {"differs": max(abs(one - other) / abs(other) for one, other in pairs)}


def _model(name: str, folder: Path) -> str:
    if name not in _EXPERTS:
        return name
    config = folder / "config.json"
    write_atomic(config, json.dumps({"model_type": name, **_DECODER, **_EXPERTS[name]}))
    return str(config)
