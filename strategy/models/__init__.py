"""Models by name: families, and their presets with the published dimensions; or by their authors' own config.

A name is that of a preset, the path of a Hugging Face folder or `config.json` (`huggingface.config`), that of a program
(`imported.read`), or `package.module:function` (`reference`).

To add a family, write one file and name it in `_MODULES`. The file holds

    a config    a frozen, slotted dataclass that is a `base.Model`: dimensions, checked in `__post_init__`; the formula
                of its parameters; what a batch is; and `module()`
    modules     built of `strategy.nn.module` and `strategy.nn.layers`; the names of attributes become those of
                parameters; repeated layers are members of a `Layers`, so that a search folds them and a pipeline cuts
                between them
    FAMILY      its name, the config's class, and presets

Nothing else knows a family: searches, plan files, the loader and the command line go through this index, and the tests
of models run over every preset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from strategy.base.errors import InputError, did_you_mean
from strategy.models import (
    arcface,
    bert,
    decoder,
    gpt,
    inception,
    llama,
    mixtral,
    mlp,
    recorded,
    recorded_layers,
    resnet,
    vgg,
    vit,
    wide_deep,
)
from strategy.models.base import Family, Integers, Model, Preset, RandomFeatures, Source, Tokens
from strategy.models.gpt import Gpt, GptConfig
from strategy.models.huggingface.config import config_name, is_config, read_config
from strategy.models.imported.read import is_program, read_program
from strategy.models.reference import is_reference, read_reference

_MODULES = (
    gpt,
    llama,
    mixtral,
    decoder,
    bert,
    vit,
    wide_deep,
    arcface,
    mlp,
    resnet,
    vgg,
    inception,
    recorded,
    recorded_layers,
)

FAMILIES: Mapping[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
PRESETS: Mapping[str, Preset] = {
    name: preset for family in FAMILIES.values() for name, preset in family.presets.items()
}


def find_preset(name: str, *, sequence: int | None = None) -> Preset:
    """A model by its name, with samples per step; `sequence` shortens (or lengthens) its context.

    Raises:
        InputError: no such preset or config, a config that cannot be read, or a model without a context.
    """
    if name not in PRESETS:
        return _from_elsewhere(name, sequence)
    found = PRESETS[name]
    if sequence is None:
        return found
    fields = {field.name for field in dataclasses.fields(type(found.model))}  # type: ignore[arg-type]
    if "sequence" not in fields:
        raise InputError("a model without tokens", where=name, got=f"a sequence of {sequence}")
    changed: Model = dataclasses.replace(found.model, sequence=sequence)  # type: ignore[type-var]
    return Preset(changed, found.global_batch)


def _from_elsewhere(name: str, sequence: int | None) -> Preset:
    """A model that is no preset of ours."""
    if is_program(name):
        return read_program(name, sequence=sequence)
    if is_config(name):
        return read_config(name, sequence=sequence)
    if not is_reference(name):
        raise InputError("unknown model", got=name, hint=did_you_mean(name, PRESETS))
    if sequence is not None:
        hint = "let the function say how long samples are"
        raise InputError(
            "a model that says itself what it reads", where=name, got=f"a sequence of {sequence}", hint=hint
        )
    return read_reference(name)


def find_model(name: str, *, sequence: int | None = None) -> Model:
    """The model of that name; see `find_preset`."""
    return find_preset(name, sequence=sequence).model


def model_name(name: str) -> str:
    """What plans call the model of that name: a preset as it is, a config by its folder, a program by its file."""
    if name not in PRESETS and is_program(name):
        return Path(name).stem
    return config_name(name) if name not in PRESETS and is_config(name) else name


def family_of(model: Model) -> Family:
    """The family that a model's class belongs to."""
    return next(family for family in FAMILIES.values() if isinstance(model, family.model))


__all__ = [
    "FAMILIES",
    "PRESETS",
    "Family",
    "Gpt",
    "GptConfig",
    "Integers",
    "Model",
    "Preset",
    "RandomFeatures",
    "Source",
    "Tokens",
    "family_of",
    "find_model",
    "find_preset",
    "model_name",
]
