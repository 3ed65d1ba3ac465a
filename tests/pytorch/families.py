"""Losses of small BERT, ViT, Llama and Mixtral models as `transformers` computes them, with parameters drawn by name.

python -m tests.pytorch.families      prints them; needs the extra `torch` and transformers
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategy.graph.graph import Role
from strategy.models import find_model
from strategy.models.bert import BertConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.models.vit import VitConfig
from strategy.passes.training import Training, training_graph
from strategy.sbp.tensor import DType

Array = NDArray[Any]
Arrays = Mapping[str, Array]
NAMES = ("bert-tiny", "vit-tiny", "llama-tiny", "mixtral-tiny")
TRAINING = Training(global_batch=2, dtype=DType.FLOAT64)


def drawn(name: str) -> dict[str, Array]:
    """Every parameter by its name: 0.2 times normal figures, around one for gains."""
    values = training_graph(find_model(name), TRAINING).with_role(Role.VARIABLE)
    return {
        v.name: 0.2 * np.random.default_rng(zlib.crc32(v.name.encode())).standard_normal(v.spec.shape)
        + float(v.init == "ones")
        for v in values
        if ":" not in v.name
    }


def batch_of(name: str) -> dict[str, Array]:
    """Two samples."""
    rng, model = np.random.default_rng(7), find_model(name)
    found: dict[str, Array] = {}
    for key, spec in model.inputs(2).items():
        below = {"segments": 2, "follows": 2, "labels": 5}.get(key, 20)
        found[key] = rng.standard_normal(spec.shape) if spec.dtype.is_float else rng.integers(0, below, spec.shape)
    return found


def torch_loss(name: str) -> float:
    """The mean loss; Mixtral's without its balancing loss."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _loss(name)
    finally:
        torch.set_default_dtype(before)


def _loss(name: str) -> float:
    import torch

    model, p = find_model(name), drawn(name)
    batch = {key: torch.tensor(array) for key, array in batch_of(name).items()}
    if isinstance(model, BertConfig):
        weights = dict(bert_weights(model, p))
        asked = {"input_ids": "ids", "token_type_ids": "segments", "labels": "labels", "next_sentence_label": "follows"}
        return float(_loaded(_bert(model), weights)(**{theirs: batch[key] for theirs, key in asked.items()}).loss)
    if isinstance(model, VitConfig):
        weights = dict(vit_weights(model, p))
        return float(_loaded(_vit(model), weights)(pixel_values=batch["images"], labels=batch["labels"]).loss)
    assert isinstance(model, LlamaConfig | MixtralConfig)
    logits = _loaded(_decoder(model), dict(decoder_weights(model, p)))(input_ids=batch["ids"]).logits
    return float(torch.nn.functional.cross_entropy(logits.reshape(-1, model.vocabulary), batch["labels"].reshape(-1)))


def _loaded(module: Any, weights: Arrays) -> Any:
    import torch

    found = module.load_state_dict({key: torch.tensor(array) for key, array in weights.items()})
    assert not found.missing_keys
    return module.eval()


def _bert(model: BertConfig) -> Any:
    from transformers import BertConfig as Config
    from transformers import BertForPreTraining

    sizes = _sizes(model, 4 * model.width)
    more = {
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.sequence,
        "type_vocab_size": model.segments,
    }
    return BertForPreTraining(Config(**sizes, **more))


def _vit(model: VitConfig) -> Any:
    from transformers import ViTConfig as Config
    from transformers import ViTForImageClassification

    sizes = _sizes(model, model.hidden)
    images = {"image_size": model.side, "patch_size": model.patch, "num_labels": model.classes}
    return ViTForImageClassification(Config(**sizes, **images, layer_norm_eps=1e-6))


def _sizes(model: BertConfig | VitConfig, hidden: int) -> dict[str, Any]:
    return {
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": hidden,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _decoder(model: LlamaConfig | MixtralConfig) -> Any:
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": model.rotary_base,
        "max_position_embeddings": model.sequence,
        "tie_word_embeddings": False,
    }
    if isinstance(model, LlamaConfig):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    experts = {"num_local_experts": model.experts, "num_experts_per_tok": model.choices, "sliding_window": None}
    found = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts))
    found.config._experts_implementation = "eager"  # the others have no double precision
    return found


def affine(theirs: str, p: Arrays, ours: str) -> Iterator[tuple[str, Array]]:
    """A linear map, which PyTorch holds as [out, in]."""
    yield f"{theirs}.weight", p[f"{ours}.weight"].T
    if f"{ours}.bias" in p:
        yield f"{theirs}.bias", p[f"{ours}.bias"]


def norm(theirs: str, p: Arrays, ours: str) -> Iterator[tuple[str, Array]]:
    """A norm's gain and bias."""
    yield from ((f"{theirs}.{part}", p[f"{ours}.{part}"]) for part in ("weight", "bias") if f"{ours}.{part}" in p)


def projections(theirs: tuple[str, str, str], p: Arrays, ours: str, heads: int) -> Iterator[tuple[str, Array]]:
    """Query, key and value from columns that are ordered head, (query, key, value), dim."""
    width = len(p[f"{ours}.weight"])
    weight, bias = p[f"{ours}.weight"].reshape(width, heads, 3, -1), p[f"{ours}.bias"].reshape(heads, 3, -1)
    for i, name in enumerate(theirs):
        yield f"{name}.weight", weight[:, :, i].reshape(width, width).T
        yield f"{name}.bias", bias[:, i].reshape(width)


def bert_weights(model: BertConfig, p: Arrays) -> Iterator[tuple[str, Array]]:
    """The state of `BertForPreTraining`."""
    embeddings, head = "bert.embeddings", "cls.predictions"
    yield f"{embeddings}.word_embeddings.weight", p["embed.token"]
    yield f"{embeddings}.position_embeddings.weight", p["embed.position"]
    yield f"{embeddings}.token_type_embeddings.weight", p["embed.segment.weight"]
    yield from norm(f"{embeddings}.LayerNorm", p, "embed.norm")
    for i in range(model.layers):
        theirs, ours = f"bert.encoder.layer.{i}", f"layers.{i}"
        names = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        yield from projections((names[0], names[1], names[2]), p, f"{ours}.attn.qkv", model.heads)
        yield from affine(f"{theirs}.attention.output.dense", p, f"{ours}.attn.proj")
        yield from norm(f"{theirs}.attention.output.LayerNorm", p, f"{ours}.norm1")
        yield from affine(f"{theirs}.intermediate.dense", p, f"{ours}.mlp.fc1")
        yield from affine(f"{theirs}.output.dense", p, f"{ours}.mlp.fc2")
        yield from norm(f"{theirs}.output.LayerNorm", p, f"{ours}.norm2")
    yield from affine("bert.pooler.dense", p, "pooler")
    yield from affine(f"{head}.transform.dense", p, "tokens.fc")
    yield from norm(f"{head}.transform.LayerNorm", p, "tokens.norm")
    yield f"{head}.bias", p["tokens.bias"]
    yield f"{head}.decoder.bias", p["tokens.bias"]
    yield f"{head}.decoder.weight", p["embed.token"]
    yield from affine("cls.seq_relationship", p, "next")


def vit_weights(model: VitConfig, p: Arrays) -> Iterator[tuple[str, Array]]:
    """The state of `ViTForImageClassification`."""
    yield "vit.embeddings.cls_token", p["patches.class_token"]
    yield "vit.embeddings.position_embeddings", p["patches.position"][None]
    yield "vit.embeddings.patch_embeddings.projection.weight", p["patches.conv.weight"]
    yield "vit.embeddings.patch_embeddings.projection.bias", p["patches.conv.bias"]
    for i in range(model.layers):
        theirs, ours = f"vit.layers.{i}", f"layers.{i}"
        names = [f"{theirs}.attention.{name}_proj" for name in "qkv"]
        yield from projections((names[0], names[1], names[2]), p, f"{ours}.attn.qkv", model.heads)
        yield from affine(f"{theirs}.attention.o_proj", p, f"{ours}.attn.proj")
        yield from norm(f"{theirs}.layernorm_before", p, f"{ours}.norm1")
        yield from norm(f"{theirs}.layernorm_after", p, f"{ours}.norm2")
        yield from affine(f"{theirs}.mlp.fc1", p, f"{ours}.mlp.fc1")
        yield from affine(f"{theirs}.mlp.fc2", p, f"{ours}.mlp.fc2")
    yield from norm("vit.layernorm", p, "norm")
    yield from affine("classifier", p, "head")


def decoder_weights(model: LlamaConfig | MixtralConfig, p: Arrays) -> Iterator[tuple[str, Array]]:
    """The state of `LlamaForCausalLM` or `MixtralForCausalLM`."""
    yield "model.embed_tokens.weight", p["token.weight"]
    for i in range(model.layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"
        for name, own in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "proj")):
            yield from affine(f"{theirs}.self_attn.{name}", p, f"{ours}.attn.{own}")
        yield from norm(f"{theirs}.input_layernorm", p, f"{ours}.norm1")
        yield from norm(f"{theirs}.post_attention_layernorm", p, f"{ours}.norm2")
        if isinstance(model, LlamaConfig):
            for name in ("gate", "up", "down"):
                yield from affine(f"{theirs}.mlp.{name}_proj", p, f"{ours}.mlp.{name}")
            continue
        gate, up, down = (p[f"{ours}.moe.{name}"].transpose(0, 2, 1) for name in ("gate", "up", "down"))
        yield f"{theirs}.mlp.gate.weight", p[f"{ours}.moe.router"].T
        yield f"{theirs}.mlp.experts.gate_up_proj", np.concatenate([gate, up], axis=1)
        yield f"{theirs}.mlp.experts.down_proj", down
    yield from norm("model.norm", p, "norm")
    yield from affine("lm_head", p, "head")


if __name__ == "__main__":
    for each in NAMES:
        print(each, torch_loss(each))
