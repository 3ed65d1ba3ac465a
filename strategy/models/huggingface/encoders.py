"""Encoders: bert, vit; our `BertConfig` and `VitConfig` say what they are.

bert  with both heads of its pre-training, whatever the config is for; an MLP of four times the width
vit   with a classifier of as many classes as the config has labels
"""

from __future__ import annotations

from functools import partial

from strategy.models.bert import EPSILON, BertConfig
from strategy.models.huggingface.decoders import ACTIVATIONS, MOST_LAYERS, MOST_WIDTH, Make
from strategy.models.huggingface.keys import Keys
from strategy.models.vit import VitConfig

LABELS = 2
"""Of a config that names none, as transformers has it."""


def bert(keys: Keys, sequence: int | None) -> Make:
    """BertForPreTraining; a shorter sample has fewer positions."""
    width = keys.size("hidden_size", 768, most=MOST_WIDTH)
    keys.must_be("intermediate_size", 4 * width)
    keys.must_be("position_embedding_type", "absolute")
    keys.must_be("tie_word_embeddings", True)
    if keys.figure("layer_norm_eps", EPSILON) != EPSILON:
        keys.wrong("layer_norm_eps", "this is not built", keys.content["layer_norm_eps"], str(EPSILON))
    context = keys.size("max_position_embeddings", 512)
    return partial(
        BertConfig,
        layers=keys.size("num_hidden_layers", 12, most=MOST_LAYERS),
        width=width,
        heads=keys.size("num_attention_heads", 12, most=MOST_WIDTH),
        sequence=sequence or context,
        vocabulary=keys.size("vocab_size", 30522),
        segments=keys.size("type_vocab_size", 2),
        activation=keys.word("hidden_act", "gelu", ACTIVATIONS),
    )


def vit(keys: Keys, sequence: int | None) -> Make:
    """ViTForImageClassification."""
    if sequence is not None:
        keys.wrong("image_size", "a model without tokens", sequence, "no --seq")
    keys.must_be("num_channels", 3)
    keys.must_be("qkv_bias", True)
    labels = keys.content.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else LABELS
    return partial(
        VitConfig,
        layers=keys.size("num_hidden_layers", 12, most=MOST_LAYERS),
        width=keys.size("hidden_size", 768, most=MOST_WIDTH),
        heads=keys.size("num_attention_heads", 12, most=MOST_WIDTH),
        hidden=keys.size("intermediate_size", 3072, most=MOST_WIDTH),
        side=keys.size("image_size", 224, most=MOST_WIDTH),
        patch=keys.size("patch_size", 16, most=MOST_WIDTH),
        classes=max(1, keys.size("num_labels", classes, most=MOST_WIDTH)),
        activation=keys.word("hidden_act", "gelu", ACTIVATIONS),
        epsilon=keys.figure("layer_norm_eps", 1e-12, least=1e-30, most=0.1),
    )


TABLES = {"bert": bert, "vit": vit}
