"""Pretrained weights: safetensors files in Hugging Face's layout, read as the parameters of our GPT and our decoders.

    wte.weight                  token                     the embedding, and the head that is tied to it
    wpe.weight                  position
    h.3.ln_1.weight             layers.3.norm1.weight
    h.3.attn.c_attn.weight      layers.3.attn.qkv.weight
    ln_f.weight                 norm.weight

is GPT-2's; names may be below `transformer.`, and both sides hold matrices as [in, out]. The columns of their
projection are ordered (query, key, value), head, dim; ours head, (query, key, value), dim: so a split of ours keeps
heads whole. What decoders are made of says `huggingface.weights`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from strategy.base.errors import InputError
from strategy.models.base import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.models.huggingface.weights import decoder_recipes, left_out_of_decoders
from strategy.models.imported.read import open_weights
from strategy.models.recorded import Recorded
from strategy.models.tensor_files import Array, Pretrained, Recipe, StoredTensor, held_in, opened, tensor

_OUTER = {"token": "wte.weight", "position": "wpe.weight", "norm.weight": "ln_f.weight", "norm.bias": "ln_f.bias"}
_OF_A_LAYER = {
    "norm1": "ln_1",
    "attn.qkv": "attn.c_attn",
    "attn.proj": "attn.c_proj",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_PREFIX = "transformer."
_HEAD = "lm_head.weight"
_CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
"""Constants that older files hold beside the weights."""


def open_pretrained(path: Path, model: Model) -> Mapping[str, Array]:
    """The weights of a file, of the files of an index, or of a folder.

    A GPT of a shorter context takes the first positions.

    Raises:
        InputError: a file cannot be read, its tensors are not those of the model (every problem in one report), or no
            such file is known for the model's family.
    """
    if isinstance(model, GptConfig):
        return _gpt(path, model)
    if isinstance(model, Recorded):
        return open_weights(path, model)
    if not isinstance(model, DecoderConfig):
        got = type(model).__name__
        expected = "a GPT, a decoder or a program"
        raise InputError("no layout of pretrained weights is known", where=str(path), got=got, expected=expected)
    held = held_in(path)
    found = opened(path, held, decoder_recipes(model, held), partial(left_out_of_decoders, model))
    if model.tied:
        _check_tied(path, held, "model.embed_tokens.weight")
    return found


def _gpt(path: Path, model: GptConfig) -> Pretrained:
    held = held_in(path)
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in held) else ""
    shapes = {name: parameter.shape for name, parameter in model.module().parameters()}
    recipes = {}
    for ours, theirs in _their_names(model).items():
        make = partial(_by_head, heads=model.heads) if ".qkv." in ours else _as_it_is
        if ours == "position":
            make = partial(_first, count=model.sequence)
        recipes[ours] = Recipe(((prefix + theirs, shapes[ours]),), make, longer=ours == "position")
    found = opened(
        path, held, recipes, lambda name: name == _HEAD or bool(_CAUSAL_MASK.fullmatch(name.removeprefix(prefix)))
    )
    _check_tied(path, held, f"{prefix}wte.weight")
    return found


def _check_tied(path: Path, held: Mapping[str, StoredTensor], token: str) -> None:
    """Refuse a head that is not the embedding, where ours is."""
    if _HEAD in held and not np.array_equal(tensor(held[_HEAD], _HEAD), tensor(held[token], token)):
        hint = "our head is tied to the embedding"
        raise InputError("the head differs from the embedding", where=f"{path}: {_HEAD}", hint=hint)


def _as_it_is(sources: Sequence[Array]) -> Array:
    return sources[0]


def _first(sources: Sequence[Array], *, count: int) -> Array:
    return sources[0][:count]


def _by_head(sources: Sequence[Array], *, heads: int) -> Array:
    return by_head(sources[0], heads)


def by_head(projection: Array, heads: int) -> Array:
    """Columns in our order: [..., (q, k, v) x heads x dim] -> [..., heads x (q, k, v) x dim]."""
    parts = projection.reshape(*projection.shape[:-1], 3, heads, -1)
    return np.ascontiguousarray(parts.swapaxes(-3, -2)).reshape(projection.shape)


def _their_names(model: GptConfig) -> dict[str, str]:
    names = dict(_OUTER)
    for layer in range(model.layers):
        for ours, theirs in _OF_A_LAYER.items():
            for part in ("weight", "bias"):
                names[f"layers.{layer}.{ours}.{part}"] = f"h.{layer}.{theirs}.{part}"
    return names
