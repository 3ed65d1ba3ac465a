"""Gemma: gemma2, gemma3_text, and the text of gemma3.

Norms around both branches, embeddings scaled by the root of the width and tied, GELU; layers that look back over a
window between those that do not. Gemma 2 bounds scores and logits; Gemma 3 normalises heads, and layers with a window
turn by a base of their own. Their norms hold one less than the gain.
"""

from __future__ import annotations

import math

from strategy.models.decoder_description import HeadNorm, NormPosition
from strategy.models.huggingface.decoders import (
    ACTIVATIONS,
    Fields,
    Make,
    decoder,
    depth,
    dimensions,
    layers,
    positions,
    text_of,
    turning,
    typed,
)
from strategy.models.huggingface.keys import IGNORED, Keys

TEXT_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}
"""Of Gemma3TextConfig: files of gemma3 say of the text what differs from these alone."""


def _gemma(keys: Keys, sequence: int | None) -> Fields:
    fields = dimensions(keys, sequence, tied=True)
    fields["activation"] = keys.word("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS)
    fields["head_width"] = keys.size("head_dim", 256)
    bias = keys.flag("attention_bias", False)
    scalar = keys.figure("query_pre_attn_scalar", 256.0, least=1e-6)
    fields |= {"qkv_bias": bias, "output_bias": bias, "norm_position": NormPosition.AROUND}
    fields |= {"embedding_scale": math.sqrt(fields["width"]), "score_scale": scalar**-0.5}
    keys.must_be("use_bidirectional_attention", False)
    return fields


def _caps(keys: Keys, scores: float, logits: float) -> Fields:
    """Bounds of scores and of logits, these unless given."""
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    return {"score_cap": keys.cap(names[0], scores), "logit_cap": keys.cap(names[1], logits)}


def gemma2(keys: Keys, sequence: int | None) -> Make:
    """Gemma2ForCausalLM: every other layer has a window, the first among them."""
    fields = _gemma(keys, sequence) | _caps(keys, 50.0, 30.0)
    count, window = depth(keys), keys.size("sliding_window", 4096)
    keys.must_be("sliding_window_size", window)
    windows = typed(keys, count, window, [place % 2 == 0 for place in range(count)])
    kinds = [(window, False) for window in windows]
    return decoder(fields | turning(positions(keys, fields)) | layers(kinds, fields["sequence"]))


def gemma3_text(keys: Keys, sequence: int | None) -> Make:
    """Gemma3ForCausalLM: every sixth layer has no window."""
    fields = _gemma(keys, sequence) | _caps(keys, 0.0, 0.0) | {"head_norm": HeadNorm.HEAD}
    count, window = depth(keys), keys.size("sliding_window", 4096)
    every = keys.size("sliding_window_pattern", keys.size("_sliding_window_pattern", 6))
    windows = typed(keys, count, window, [(place + 1) % every != 0 for place in range(count)])
    local = keys.figure("rope_local_base_freq", 10000.0, least=1.001)
    by_type = keys.inner("rope_parameters")
    whole = None if by_type is None else by_type.inner("full_attention")
    sliding = None if by_type is None else by_type.inner("sliding_attention")
    if sliding is not None:
        local = sliding.figure("rope_theta", local, least=1.001)
        sliding.must_be("rope_type", "default")
        sliding.close()
    if by_type is not None:
        by_type.close()
    found = positions(keys, fields, base=1000000.0, scaling=whole)
    kinds = [(window, False) for window in windows]
    return decoder(fields | turning(found) | {"window_rotary_base": local} | layers(kinds, fields["sequence"]))


def gemma3(keys: Keys, sequence: int | None) -> Make:
    """The text of Gemma3ForConditionalGeneration; its images are left out."""
    text = text_of(keys, "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
    text.content = {**TEXT_DEFAULTS, **text.content}
    make = gemma3_text(text, sequence)
    text.close(ignored=IGNORED)
    return make


TABLES = {"gemma2": gemma2, "gemma3_text": gemma3_text, "gemma3": gemma3}
