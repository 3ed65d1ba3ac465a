"""Public configurations of models whose dimensions published rows leave blank.

From the models' own reports and configuration files. A row's own columns go before what stands here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from experiments.published.spellings import plain
from strategy.base.errors import InputError
from strategy.closed_form.job import Shape
from strategy.trainers.architecture import Architecture, shape_of
from strategy.trainers.known_models import known_model, known_models, named_model

_QWEN3_30B = Shape(
    layers=48, hidden=2048, heads=32, kv_heads=4, head_qk=128, head_v=128, vocab=151936, gated=True, tied=False,
    attention_layers=48, moe_layers=48, experts=128, top_k=8, expert_ffn=768,
)  # fmt: skip
_DEEPSEEK_V3 = Shape(
    layers=61, hidden=7168, heads=128, kv_heads=128, head_qk=192, head_v=128, q_rank=1536, kv_rank=576, ffn=18432,
    vocab=129280, gated=True, tied=False, attention_layers=61, dense_layers=3, moe_layers=58, experts=256, top_k=8,
    expert_ffn=2048, shared_ffn=2048,
)  # fmt: skip
_NEMOTRON_NANO = Shape(
    layers=52, hidden=2688, heads=32, kv_heads=2, head_qk=128, head_v=128, vocab=131072, tied=False,
    attention_layers=6, mamba_layers=23, mamba_inner=4096, mamba_state=128, moe_layers=23, experts=128, top_k=6,
    expert_ffn=1856, shared_ffn=3712,
)  # fmt: skip
_GEMMA = Shape(
    layers=48, hidden=3840, heads=16, kv_heads=8, head_qk=256, head_v=256, ffn=15360, vocab=262144, gated=True,
    attention_layers=48, dense_layers=48, attended=0.36,
)  # fmt: skip
"""Five layers of six look at a window of 1,024 positions, here of 8,192."""
_LLAMA4 = Shape(
    layers=48, hidden=5120, heads=40, kv_heads=8, head_qk=128, head_v=128, ffn=16384, vocab=202048, gated=True,
    tied=False, attention_layers=48, moe_layers=48, experts=16, top_k=1, expert_ffn=8192, shared_ffn=8192,
)  # fmt: skip
MODELS = {
    "gemma312b": _GEMMA,
    "gemma42b": replace(
        _GEMMA, layers=35, hidden=1536, heads=8, kv_heads=1, ffn=6144, attention_layers=35, dense_layers=35
    ),
    "gemma44b": replace(
        _GEMMA, layers=42, hidden=2560, heads=8, kv_heads=2, ffn=10240, attention_layers=42, dense_layers=42
    ),
    "gemma426b": replace(
        _GEMMA, layers=30, hidden=2816, ffn=2112, attention_layers=30, dense_layers=0, moe_layers=30, experts=128,
        top_k=8, expert_ffn=704, shared_ffn=2112,
    ),
    "gemma431b": replace(
        _GEMMA, layers=60, hidden=5376, heads=32, kv_heads=16, ffn=21504, attention_layers=60, dense_layers=60
    ),
    "llama4scout17b16e": _LLAMA4,
    "llama4maverick17b128e": replace(_LLAMA4, dense_layers=24, moe_layers=24, experts=128),
    "qwen330ba3b": _QWEN3_30B,
    "qwen3235ba22b": replace(
        _QWEN3_30B, layers=94, hidden=4096, heads=64, attention_layers=94, moe_layers=94, expert_ffn=1536
    ),
    "deepseekv3": _DEEPSEEK_V3,
    "deepseekv4flash": Shape(
        layers=43, hidden=4096, heads=64, kv_heads=1, head_qk=512, head_v=512, q_rank=1024, kv_rank=512, vocab=129280,
        gated=True, tied=False, attention_layers=43, attended=0.25, moe_layers=43, experts=256, top_k=6,
        expert_ffn=2048, shared_ffn=2048,
    ),
    "kimik2": replace(
        _DEEPSEEK_V3, heads=64, kv_heads=64, vocab=163840, dense_layers=1, moe_layers=60, experts=384
    ),
    "gptoss120b": Shape(
        layers=36, hidden=2880, heads=64, kv_heads=8, head_qk=64, head_v=64, vocab=201088, gated=True, tied=False,
        attention_layers=36, attended=0.53, moe_layers=36, experts=128, top_k=4, expert_ffn=2880,
    ),
    "nemotron3nano": _NEMOTRON_NANO,
    "nemotron3super": replace(
        _NEMOTRON_NANO, layers=88, hidden=4096, attention_layers=8, mamba_layers=40, mamba_inner=8192, moe_layers=40,
        experts=512, top_k=22, expert_ffn=2688, shared_ffn=5376, latent=1024,
    ),
    "nemotron3ultra": replace(
        _NEMOTRON_NANO, layers=108, hidden=8192, heads=64, attention_layers=12, mamba_layers=48, mamba_inner=16384,
        moe_layers=48, experts=512, top_k=22, expert_ffn=5120, shared_ffn=10240, latent=2048,
    ),
    # 4.1 G multiply-adds and 11.1 M outputs of convolutions per image of 224 x 224.
    "resnet50v15": Shape(layers=1, conv_flop=8.2e9, conv_elements=11.1e6, conv_kernels=175, parameters=25.6e6),
}  # fmt: skip
WITHOUT_PREDICTION_HEAD = "w/o MTP"
"""Multi-token prediction adds a layer and a second pass over the logits; rows say when it is off."""


def public_shape(name: str, sequence: int) -> Shape | None:
    """The model of a public configuration: one above, one that trainers name, or one as published."""
    called = plain(name.partition("(")[0])
    if called in MODELS:
        return MODELS[called]
    if found := known_model(name.partition("(")[0].strip()) or _trainers().get(called):
        return shape_of(found, sequence)
    path = _published().get(called)
    if path is None:
        return None
    try:
        return shape_of(named_model(str(path)), sequence)
    except InputError:  # it is no language model
        return None


@cache
def _trainers() -> dict[str, Architecture]:
    """Plain name -> the model that configurations of trainers call so."""
    return {plain(name): model for name, model in known_models().items() if "/" not in name}


@cache
def _published() -> dict[str, Path]:
    """Plain name -> the configuration that a model's makers published."""
    folder = Path(str(resources.files("experiments") / "reference" / "huggingface" / "configs"))
    return {plain(path.stem).removeprefix("meta").removesuffix("hf"): path for path in sorted(folder.glob("*.json"))}
