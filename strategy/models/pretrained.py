"""Pretrained weights: a safetensors file in Hugging Face's GPT-2 layout, read as the parameters of our GPT.

    wte.weight                  token                     the embedding, and the head that is tied to it
    wpe.weight                  position
    h.3.ln_1.weight             layers.3.norm1.weight
    h.3.attn.c_attn.weight      layers.3.attn.qkv.weight
    ln_f.weight                 norm.weight

Files name them so, or below `transformer.`. Both sides hold matrices as [in, out]. The columns of their projection are
ordered (query, key, value), head, dim; ours head, (query, key, value), dim: so a split of ours keeps heads whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategy.base.errors import InputError, report
from strategy.models.base import Model
from strategy.models.gpt import GptConfig
from strategy.sbp.tensor import Shape

Array = NDArray[Any]

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
_DTYPES = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class Pretrained(Mapping[str, Array]):
    """The parameters of a model by our names; each is read from the file when it is asked for.

    Attributes:
        path: the file.
        model: whose parameters it holds.
        names: our name -> the name in the file.
    """

    path: Path
    model: GptConfig
    names: Mapping[str, str]

    def __getitem__(self, name: str) -> Array:
        found = _tensor(self.path, self.names[name])
        if name == "position":
            return found[: self.model.sequence]
        return by_head(found, self.model.heads) if ".qkv." in name else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def open_pretrained(path: Path, model: Model) -> Pretrained:
    """The weights of a file; a model with a shorter context takes the first positions.

    Raises:
        InputError: the file cannot be read, its tensors are not those of the model (every problem in one report), or no
            such file is known for the model's family.
    """
    if not isinstance(model, GptConfig):
        got = type(model).__name__
        raise InputError("no layout of pretrained weights is known", where=str(path), got=got, expected="a GPT")
    held = _held(path)
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in held) else ""
    names = {ours: prefix + theirs for ours, theirs in _their_names(model).items()}
    shapes = {name: parameter.shape for name, parameter in model.module().parameters()}
    problems = []
    for ours, theirs in names.items():
        shape, dtype = held.get(theirs, (None, ""))
        where = f"{path}: {theirs}"
        if shape is None:
            problems.append(InputError("the tensor is missing", where=where, hint=f"it becomes {ours}"))
        elif not _fits(ours, shape, shapes[ours]):
            problems.append(InputError("another shape", where=where, got=shape, expected=str(shapes[ours])))
        elif dtype not in _DTYPES:
            problems.append(InputError("another dtype", where=where, got=dtype, expected=", ".join(_DTYPES)))
    problems += [
        InputError("the model has no such tensor", where=f"{path}: {theirs}")
        for theirs in sorted(held.keys() - set(names.values()))
        if theirs != _HEAD and not _CAUSAL_MASK.fullmatch(theirs.removeprefix(prefix))
    ]
    report(problems, where=str(path))
    if _HEAD in held and not np.array_equal(_tensor(path, _HEAD), _tensor(path, names["token"])):
        hint = "our head is tied to the embedding"
        raise InputError("the head differs from the embedding", where=f"{path}: {_HEAD}", hint=hint)
    return Pretrained(path, model, names)


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


def _fits(ours: str, found: Shape, wanted: Shape) -> bool:
    if ours == "position":
        return len(found) == 2 and found[0] >= wanted[0] and found[1:] == wanted[1:]
    return found == wanted


def _held(path: Path) -> dict[str, tuple[Shape, str]]:
    """Name -> shape and dtype of every tensor of a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise InputError("the file cannot be read", where=str(path), got=str(error)) from error


def _tensor(path: Path, name: str) -> Array:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        found: Array = file.get_tensor(name)
    return found
