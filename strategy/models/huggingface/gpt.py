"""GPT-2 and GPT-NeoX.

gpt2      learned positions, a tied head; our `GptConfig` says all of it, with an MLP of four times the width
gpt_neox  a part of every head turns; attention and MLP side by side, of norms of their own
"""

from __future__ import annotations

from functools import partial

from strategy.models.decoder_description import NormPosition
from strategy.models.gpt import GptConfig
from strategy.models.huggingface.decoders import (
    ACTIVATIONS,
    MOST_LAYERS,
    MOST_WIDTH,
    Make,
    alike,
    decoder,
    dimensions,
    share_of_heads,
    turning,
)
from strategy.models.huggingface.keys import Keys
from strategy.models.huggingface.positions import read_positions


def gpt2(keys: Keys, sequence: int | None) -> Make:
    """GPT2LMHeadModel; a longer sample needs more positions, which the model then has."""
    width, heads = keys.size("n_embd", 768, most=MOST_WIDTH), keys.size("n_head", 12, most=MOST_WIDTH)
    context = keys.size("n_positions", 1024)
    keys.must_be("n_inner", 4 * width)
    activation = keys.word("activation_function", "gelu_new", ACTIVATIONS)
    if activation != "gelu":
        keys.wrong("activation_function", "this is not built", keys.content["activation_function"], "gelu_new")
    if keys.figure("layer_norm_epsilon", 1e-5) != 1e-5:
        keys.wrong("layer_norm_epsilon", "this is not built", keys.content["layer_norm_epsilon"], "1e-05")
    keys.must_be("tie_word_embeddings", True)
    keys.must_be("scale_attn_weights", True)
    keys.must_be("scale_attn_by_inverse_layer_idx", False)
    keys.must_be("add_cross_attention", False)
    layers = keys.size("n_layer", 12, most=MOST_LAYERS)
    vocabulary = keys.size("vocab_size", 50257)
    return partial(GptConfig, layers, width, heads, sequence or context, vocabulary)


def gpt_neox(keys: Keys, sequence: int | None) -> Make:
    """GPTNeoXForCausalLM."""
    fields = dimensions(keys, sequence, key_heads=True)
    fields["epsilon"] = keys.figure("layer_norm_eps", 1e-5, least=1e-30)
    fields["activation"] = keys.word("hidden_act", "gelu", ACTIVATIONS)
    keys.must_be("num_key_value_heads", fields["heads"])
    bias, parallel = keys.flag("attention_bias", True), keys.flag("use_parallel_residual", True)
    fields |= {"layer_norm": True, "gated": False, "mlp_bias": True, "qkv_bias": bias, "output_bias": bias}
    fields["norm_position"] = NormPosition.PARALLEL if parallel else NormPosition.BEFORE
    turned = share_of_heads(keys, "rotary_pct", 0.25, fields["head_width"])
    base = keys.figure("rotary_emb_base", 10000.0, least=1.001)
    context = keys.size("max_position_embeddings")
    found = read_positions(
        keys,
        width=fields["head_width"],
        turning=turned,
        context=context,
        sequence=fields["sequence"],
        base=base,
    )
    return decoder(fields | {"rotary_width": turned} | turning(found) | alike(keys, fields))


TABLES = {"gpt2": gpt2, "gpt_neox": gpt_neox}
