"""What the tables of decoders share: the keys that most have, read into the fields of a `DecoderConfig`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strategy.models.base import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.huggingface.arrangement import Kind, arranged
from strategy.models.huggingface.keys import Keys
from strategy.models.huggingface.positions import Positions, read_positions

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}
"""Names of activations, and the kinds of ops that they are."""
MOST_LAYERS, MOST_EXPERTS, MOST_WIDTH, MOST_AHEAD = 4096, 65536, 2**22, 64
LAYER_TYPES = ("full_attention", "sliding_attention")
Fields = dict[str, Any]
Make = Callable[[], Model]
"""Makes the model that a table has read; refuses what does not go together."""


def dimensions(
    keys: Keys, sequence: int | None, *, tied: bool = False, epsilon: float = 1e-6, key_heads: bool = False
) -> Fields:
    """Sizes, norms' epsilon, ends and activation of a decoder, by the keys that Llama has.

    Args:
        keys: the config.
        sequence: tokens per sample, or None for the context's.
        tied: whether head and embedding are one, unless it is said.
        epsilon: of the norms, likewise.
        key_heads: whether their number may be left out: then there are as many as heads of queries.
    """
    width = keys.size("hidden_size", most=MOST_WIDTH)
    heads = keys.size("num_attention_heads", most=MOST_WIDTH)
    if not keys.given("head_dim") and width % heads:
        problem = "the width is no multiple of the heads"
        keys.wrong("num_attention_heads", problem, (width, heads), "another number, or head_dim")
    context = keys.size("max_position_embeddings")
    return {
        "width": width,
        "heads": heads,
        "key_heads": keys.size("num_key_value_heads", **({"default": heads} if key_heads else {}), most=MOST_WIDTH),
        "head_width": keys.size("head_dim", max(1, width // heads), most=MOST_WIDTH),
        "hidden": keys.size("intermediate_size", most=MOST_WIDTH),
        "sequence": sequence or context,
        "vocabulary": keys.size("vocab_size"),
        "epsilon": keys.figure("rms_norm_eps", epsilon, least=1e-30),
        "tied": keys.flag("tie_word_embeddings", tied),
        "activation": keys.word("hidden_act", "silu", ACTIVATIONS),
    }


def text_of(keys: Keys, *of_images: str) -> Keys:
    """The keys of the text of a model that sees images, too; those and its keys `of_images` are left out."""
    keys.read |= {"vision_config", *of_images}
    text = keys.inner("text_config")
    if text is None:
        keys.wrong("text_config", "the key is missing", None, "an object")
        return Keys({}, keys.where)
    return text


def depth(keys: Keys) -> int:
    """Layers."""
    return keys.size("num_hidden_layers", most=MOST_LAYERS)


def layers(kinds: Sequence[Kind], sequence: int) -> Fields:
    """The fields that say which layers there are; a window as long as the samples is none."""
    found = arranged([(window if window < sequence else 0, sparse) for window, sparse in kinds])
    windows, sparse = zip(*found.kinds, strict=True)
    return {
        "before": found.before,
        "layers": found.layers,
        "after": found.after,
        "windows": tuple(windows),
        "sparse": tuple(map(int, sparse)),
    }


def alike(keys: Keys, fields: Fields, *, window: int = 0, sparse: bool = False) -> Fields:
    """Layers that are all of one kind."""
    return layers([(window, sparse)] * depth(keys), fields["sequence"])


def typed(keys: Keys, count: int, window: int, default: Sequence[bool]) -> list[int]:
    """The window of every layer, by `layer_types` or else where the default says so."""
    if not keys.given("layer_types"):
        keys.read.add("layer_types")
        return [window * slides for slides in default]
    return [window * (word == "sliding_attention") for word in keys.words("layer_types", count, LAYER_TYPES)]


def positions(
    keys: Keys, fields: Fields, *, base: float = 10000.0, turning: int = 0, width: int = 0, scaling: Keys | None = None
) -> Positions:
    """How heads turn: `turning` elements of `width`, all of `head_width` unless given; see `read_positions`."""
    width = width or fields["head_width"]
    context = keys.size("max_position_embeddings")
    return read_positions(
        keys,
        width=width,
        turning=turning or width,
        context=context,
        sequence=fields["sequence"],
        base=base,
        scaling=scaling,
    )


def turning(found: Positions) -> Fields:
    """The fields that say how heads turn."""
    return {"rotary_base": found.base, "rotary_frequencies": found.frequencies, "rotary_scale": found.scale}


def share_of_heads(keys: Keys, key: str, default: float, width: int) -> int:
    """Elements of a head that turn, by the share that a key says."""
    newer = keys.content.get("rope_parameters")
    if isinstance(newer, dict) and not keys.given(key):
        default = Keys(newer, keys.where, keys.problems).figure("partial_rotary_factor", default, least=1e-6, most=1.0)
    found = int(width * keys.figure(key, default, least=1e-6, most=1.0))
    if found < 2 or found % 2:
        keys.wrong(key, "no even number of elements turns", found, "an even part of a head")
        return 2
    return found


def decoder(fields: Fields) -> Make:
    """What makes a decoder with these fields."""
    return partial(DecoderConfig, **fields)
