"""Llama and its kin: llama, mistral, the text of mistral3, qwen2, qwen3, phi3, olmo2.

mistral  looks back over a window
qwen2    biases of queries, keys and values
qwen3    a norm of every head of queries and keys
phi3     one matrix for queries, keys and values, one for both hidden layers: here they are several
olmo2    norms behind what they were before, and over all heads at once
"""

from __future__ import annotations

from strategy.models.decoder_description import HeadNorm, NormPosition
from strategy.models.huggingface.decoders import (
    Make,
    alike,
    decoder,
    depth,
    dimensions,
    layers,
    positions,
    share_of_heads,
    text_of,
    turning,
    typed,
)
from strategy.models.huggingface.keys import IGNORED, Keys


def llama(keys: Keys, sequence: int | None) -> Make:
    """LlamaForCausalLM."""
    fields = dimensions(keys, sequence, key_heads=True)
    bias = keys.flag("attention_bias", False)
    fields |= {"qkv_bias": bias, "output_bias": bias, "mlp_bias": keys.flag("mlp_bias", False)}
    return decoder(fields | turning(positions(keys, fields)) | alike(keys, fields))


def mistral(keys: Keys, sequence: int | None) -> Make:
    """MistralForCausalLM; without a word, windows are of 4,096."""
    fields = dimensions(keys, sequence)
    window = keys.size("sliding_window", 0 if "sliding_window" in keys.content else 4096, least=0)
    return decoder(fields | turning(positions(keys, fields)) | alike(keys, fields, window=window))


def mistral3(keys: Keys, sequence: int | None) -> Make:
    """The text of Mistral3ForConditionalGeneration; its images are left out."""
    of_images = ("image_token_index", "image_token_id", "multimodal_projector_bias", "projector_hidden_act")
    text = text_of(keys, *of_images, "spatial_merge_size", "vision_feature_layer")
    text.must_be("model_type", "mistral")
    make = mistral(text, sequence)
    text.close(ignored=IGNORED)
    return make


def qwen_windows(keys: Keys, count: int) -> list[int]:
    """The window of every layer: the first `max_window_layers` have none."""
    window = keys.size("sliding_window", 0, least=0)
    first = keys.size("max_window_layers", 28, least=0)
    used = keys.flag("use_sliding_window", False)
    return typed(keys, count, window if used else 0, [place >= first for place in range(count)])


def qwen2(keys: Keys, sequence: int | None) -> Make:
    """Qwen2ForCausalLM."""
    fields = dimensions(keys, sequence) | {"qkv_bias": True}
    keys.must_be("use_mrope", False)
    kinds = [(window, False) for window in qwen_windows(keys, depth(keys))]
    return decoder(fields | turning(positions(keys, fields)) | layers(kinds, fields["sequence"]))


def qwen3(keys: Keys, sequence: int | None) -> Make:
    """Qwen3ForCausalLM; heads are of 128 elements unless given."""
    fields = dimensions(keys, sequence)
    bias = keys.flag("attention_bias", False)
    fields |= {"head_norm": HeadNorm.HEAD, "qkv_bias": bias, "output_bias": bias}
    fields["head_width"] = keys.size("head_dim", 128)
    kinds = [(window, False) for window in qwen_windows(keys, depth(keys))]
    return decoder(fields | turning(positions(keys, fields)) | layers(kinds, fields["sequence"]))


def phi3(keys: Keys, sequence: int | None) -> Make:
    """Phi3ForCausalLM, which Phi-4-mini is too."""
    fields = dimensions(keys, sequence, epsilon=1e-5, key_heads=True)
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        keys.must_be(key, False)
    turned = share_of_heads(keys, "partial_rotary_factor", 1.0, fields["head_width"])
    found = positions(keys, fields, turning=turned)
    window = keys.size("sliding_window", 0, least=0)
    return decoder(fields | {"rotary_width": turned} | turning(found) | alike(keys, fields, window=window))


def olmo2(keys: Keys, sequence: int | None) -> Make:
    """Olmo2ForCausalLM."""
    fields = dimensions(keys, sequence, epsilon=1e-5, key_heads=True)
    bias = keys.flag("attention_bias", False)
    fields |= {"qkv_bias": bias, "output_bias": bias}
    fields |= {"norm_position": NormPosition.AFTER, "head_norm": HeadNorm.WHOLE}
    return decoder(fields | turning(positions(keys, fields)) | alike(keys, fields))


TABLES = {
    "llama": llama,
    "mistral": mistral,
    "mistral3": mistral3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "phi3": phi3,
    "olmo2": olmo2,
}
