"""What `sbplan bench cpu` trains, and how: small enough for a core, with the proportions of what people train."""

from __future__ import annotations

from collections.abc import Mapping

from strategy.models.base import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training

TRAINING = Training(8, lr=5e-4, fused=True)
"""At larger rates roundings grow until the losses of any two programs differ."""
CPU_MODELS: Mapping[str, Model] = {
    "gpt": GptConfig(layers=4, width=256, heads=4, sequence=128, vocabulary=4096),
    "gpt-tiny": GptConfig(layers=4, width=128, heads=4, sequence=128, vocabulary=256),
    "llama": DecoderConfig(
        layers=4, width=256, heads=4, key_heads=2, head_width=64, hidden=688, sequence=128, vocabulary=4096
    ),
}
