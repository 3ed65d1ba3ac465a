"""Known models: those that configurations name instead of giving their dimensions, with where these are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

from strategy.base.errors import InputError, did_you_mean
from strategy.models import PRESETS, find_model
from strategy.models.huggingface.config import is_config
from strategy.trainers.architecture import Architecture, Kind, PositionKind, of_model

ALIASES = {
    "llama31-405b": "llama3-405b",
    "meta-llama-3-8b": "llama3-8b",
    "meta-llama-3.1-8b": "llama3-8b",
    "llama-3.1-70b-instruct": "llama3-70b",
    "dbrx-instruct": "dbrx",
    "qwen3-4b-instruct-2507": "qwen3-4b",
    "405b": "llama3-405b",
}
"""Names by which configurations call them."""


@cache
def known_models() -> Mapping[str, Architecture]:
    """Name -> architecture; torchtitan's flavours are `torchtitan/family/flavour`."""
    table = json.loads((resources.files("strategy.trainers") / "known_models.json").read_text(encoding="utf-8"))
    found = {}
    for name, fields in table.items():
        del fields["source"]
        fields["kind"] = Kind(fields.get("kind", Kind.DECODER))
        fields["positions"] = PositionKind(fields.get("positions", PositionKind.ROTARY))
        found[name] = Architecture(**fields)
    return MappingProxyType(found)


def known_model(name: str) -> Architecture | None:
    """The model of that name; the owner of a repository is no part of it."""
    plain = name.lower().rpartition("/")[2].replace("_", "-")
    return known_models().get(ALIASES.get(plain, plain))


def model_in(name: str) -> str:
    """The known model whose name is in another, such as a recipe's; the longest, or nothing."""
    plain = name.lower().replace("_", "-")
    names = [one for one in (*known_models(), *ALIASES) if "/" not in one and one != "405b"]
    return max((one for one in names if one in plain), key=len, default="")


def named_model(name: str) -> Architecture:
    """A model by the name that a command line gives: a known one, a preset of ours, or a Hugging Face config.

    Raises:
        InputError: there is none, or it is no language model.
    """
    if found := known_model(name):
        return found
    if name in PRESETS or is_config(name):
        return of_model(find_model(name))
    names = (*PRESETS, *(one for one in known_models() if "/" not in one))
    hint = did_you_mean(name, names)
    raise InputError("unknown model", got=name, expected="a preset, a known model or a config.json", hint=hint)
