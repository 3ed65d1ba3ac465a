"""Decoders: models of the Llama kind, from the description of their features to a module that can be traced."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.models.base import Family
from strategy.models.decoder_description import DecoderDescription
from strategy.models.decoder_layers import Decoder
from strategy.nn.module import Module


@dataclass(frozen=True, slots=True)
class DecoderConfig(DecoderDescription):
    """A decoder as plan files hold it."""

    def module(self) -> Module:
        """The model, to be traced."""
        return Decoder(self)


FAMILY = Family("decoder", DecoderConfig, {})
"""Models of this kind come from their authors' own files (`strategy.models.huggingface`)."""
