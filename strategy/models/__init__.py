"""Models by name: presets with their published dimensions."""

from __future__ import annotations

from collections.abc import Mapping

from strategy.errors import InputError, did_you_mean
from strategy.models.gpt import Gpt, GptConfig

PRESETS: Mapping[str, GptConfig] = {
    "gpt-tiny": GptConfig(layers=4, width=128, heads=4, sequence=128, vocabulary=256),
    "gpt2-small": GptConfig(layers=12, width=768, heads=12, sequence=1024, vocabulary=50257),
    "gpt2-345m": GptConfig(layers=24, width=1024, heads=16, sequence=1024, vocabulary=50257),
    "gpt3-175b": GptConfig(layers=96, width=12288, heads=96, sequence=2048, vocabulary=50257),
    "gpt-1t": GptConfig(layers=128, width=25600, heads=160, sequence=2048, vocabulary=51200),
}


def find_model(name: str, *, sequence: int | None = None) -> GptConfig:
    """A preset's dimensions; `sequence` shortens (or lengthens) its context.

    Raises:
        InputError: no such preset.
    """
    if name not in PRESETS:
        raise InputError("unknown model", got=name, hint=did_you_mean(name, PRESETS))
    found = PRESETS[name]
    if sequence is None:
        return found
    return GptConfig(found.layers, found.width, found.heads, sequence, found.vocabulary)


__all__ = ["PRESETS", "Gpt", "GptConfig", "find_model"]
