"""Row shapes: the model of a published run, as its columns give it, or as a public configuration does.

What a row leaves open of a model is filled in by a rule that stands beside it below; where more than one answer is
possible (the number of heads), all of them are given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from experiments.published.cells import Cells, Unsupported, count, figure
from experiments.published.guessed_shapes import PER_LAYER, guessed_dimensions, guessed_pattern
from experiments.published.models import MODELS, public_shape
from strategy.closed_form.job import Shape

BERT_VOCABULARY = 30522
_VOCABULARY = 131_072
_MASKED = 0.16
"""Share of the positions whose logits BERT's own code computes; Megatron-Core computes all."""
_DECODER_SHARE = 0.25
"""A T5 of Megatron reads 512 positions and writes 128."""
_UNTIED_FROM = 100_000
"""Vocabularies from here on came with models whose logits have weights of their own."""
_MAMBA_HEAD = 64
_MAMBA_STATE = 128
_GATED = ("llama", "mistral", "mixtral", "qwen", "gemma", "deepseek", "internlm", "yi", "phi3")
"""Kinds of models whose feed-forwards have a gate."""
_OF_IMAGES = ("cnn", "resnet", "vit", "vision")
_STAGGERED = re.compile(r"\(\[0\]\*(\d+)\+\[1\]\*(\d+)\)")


def shapes_of(cells: Cells, tp: int, memory_bytes: float = 0.0) -> list[Shape]:
    """The row's model; one shape per possible number of heads where the row does not say.

    `memory_bytes` of a replica's devices tell the size of a model of which nothing is known; `guessed_of_model` says
    what was guessed.

    Raises:
        Unsupported: a dimension that cannot be.
    """
    words = cells["arch"].split()
    family = _kind(cells)
    if not cells["hidden"] or (words == ["hybrid"] and _public(cells)):  # dimensions, or the pattern, are blank
        if public := _public(cells):
            return [replace(public, capped="tokendrop" in cells["model"])]
        if family.startswith(_OF_IMAGES):
            return [MODELS["resnet50v15"]]
        guess = guessed_dimensions(
            figure(cells, "params_b", 0.0) * 1e9, experts=figure(cells, "experts", 0.0), tp=tp,
            pp=count(cells, "pp", 1), memory_bytes=memory_bytes, gated=_gated(cells),
        )  # fmt: skip
        cells = {**cells, **{name: text for name, text in guess.items() if name == "heads" or not cells[name]}}
    hidden = count(cells, "hidden")
    gated = _gated(cells)
    vocab = count(cells, "vocab", BERT_VOCABULARY if family == "bert" else _VOCABULARY)
    layers = _layers(cells, hidden, vocab)
    heads = [count(cells, "heads")] if cells["heads"] else possible_heads(hidden, tp)
    found = [
        Shape.transformer(
            layers, hidden, head, count(cells, "ffn", 4 * hidden), vocab,
            kv_heads=count(cells, "kv_heads", 8 if gated else head), head=_head_width(hidden, head, cells, gated=gated),
            gated=gated, tied=not gated and vocab < _UNTIED_FROM, logit_share=_logit_share(cells, family),
        )
        for head in heads or [max(hidden // PER_LAYER // tp, 1) * tp]
    ]  # fmt: skip
    if family == "t5":
        half = layers // 2
        found = [replace(one, decoder_layers=half, attention_layers=layers + half, decoder_share=_DECODER_SHARE)
                 for one in found]  # fmt: skip
    if family == "hybrid":
        found = [_hybrid(one, words[1:]) for one in found]
    found = [_with_latent(_with_experts(one, cells), cells) for one in found]
    return [_with_prediction(one, cells) for one in found]


def guessed_of_model(cells: Cells) -> list[str]:
    """Columns of the model that had to be guessed: `model` where its size had to be, too."""
    if not cells["hidden"]:
        return [] if _public(cells) else ["hidden" if cells["params_b"] else "model"]
    found = [] if cells["layers"] or cells["params_b"] else ["layers"]
    words = cells["arch"].split()
    if not words or (_kind(cells) == "hybrid" and not (_pattern(words[1:]) or (words[1:] == [] and _public(cells)))):
        found.append("arch")
    return found


def _public(cells: Cells) -> Shape | None:
    return public_shape(cells["model"], count(cells, "seq", 1))


def _kind(cells: Cells) -> str:
    words = cells["arch"].split()
    return words[0].lower() if words else "gpt"


def _gated(cells: Cells) -> bool:
    return _kind(cells).startswith(_GATED) or "gated" in cells["arch"].split()


def _layers(cells: Cells, hidden: int, vocab: int) -> int:
    if cells["layers"]:
        return count(cells, "layers")
    return layers_of(figure(cells, "params_b"), hidden, vocab) if cells["params_b"] else max(hidden // PER_LAYER, 1)


def adapter_rank(cells: Cells) -> int:
    """Rank of the adapters that are trained while the weights stand still (LoRA); 0 where all is trained."""
    words = ["LoRA" if word.lower() == "lora" else word for word in cells["arch"].split()]
    if "LoRA" not in words:
        return 0
    after = words[words.index("rank") + 1 :] if "rank" in words else []
    return int(after[0]) if after and after[0].isdecimal() and len(after[0]) < 6 and int(after[0]) else 16


def layers_of(billions: float, hidden: int, vocab: int) -> int:
    """Layers of a plain transformer of so many parameters."""
    return max(round((billions * 1e9 - vocab * hidden) / (12 * hidden**2)), 1)


def possible_heads(hidden: int, tp: int) -> list[int]:
    """Numbers of heads that divide the model, with heads of 96 to 256; the fewest first."""
    return [hidden // width for width in range(256, 95, -1) if hidden % width == 0 and hidden // width % tp == 0]


def _head_width(hidden: int, heads: int, cells: Cells, *, gated: bool) -> int:
    """Published mixtures of gated experts have heads of 128, or of 64, where the model over its heads is no width."""
    width = max(hidden // heads, 1)
    if gated and cells["experts"] and width < 128:
        return 128 if width >= 64 else 64
    return width


def _logit_share(cells: Cells, kind: str) -> float:
    if kind == "bert" and not cells["framework"].startswith("Megatron-Core"):
        return _MASKED
    return _DECODER_SHARE if kind == "t5" else 1.0


def _with_experts(shape: Shape, cells: Cells) -> Shape:
    """A shape whose feed-forwards are experts, in all layers but the first few that `moe_layer_freq` leaves dense."""
    if not cells["experts"]:
        return shape
    feeds = shape.dense_layers if not shape.mamba_layers else shape.moe_layers
    staggered = _STAGGERED.fullmatch(cells["moe_layer_freq"])
    dense = 0 if shape.mamba_layers else min(int(staggered[1]), feeds) if staggered else 0
    return replace(
        shape,
        dense_layers=shape.dense_layers if shape.mamba_layers else dense,
        moe_layers=feeds - dense,
        experts=count(cells, "experts"),
        top_k=count(cells, "topk", 1),
        expert_ffn=count(cells, "moe_ffn", shape.ffn),
        shared_ffn=count(cells, "shared_expert_ffn") if cells["shared_expert_ffn"] else 0,
    )


def _with_latent(shape: Shape, cells: Cells) -> Shape:
    """A shape with latent attention: ranks of queries and of keys, widths without and with positions, of values."""
    if not cells["mla"]:
        return shape
    parts = cells["mla"].split(",")
    if len(parts) != 5 or not all(part.isdecimal() and 0 < len(part) < 10 and int(part) for part in parts):
        raise Unsupported(f"mla: got {cells['mla']!r}, expected five whole numbers with commas between")
    queries, keys, plain_width, rotary, values = map(int, parts)
    return replace(
        shape, kv_heads=shape.heads, head_qk=plain_width + rotary, head_v=values, q_rank=queries, kv_rank=keys + rotary
    )


def _with_prediction(shape: Shape, cells: Cells) -> Shape:
    """A shape that predicts tokens further ahead: each depth is one more layer of the last kind."""
    if not cells["mtp_layers"] or cells["mtp_layers"] == "0":
        return shape
    more = count(cells, "mtp_layers")
    routed = more if shape.moe_layers else 0
    return replace(
        shape,
        mtp_layers=more,
        attention_layers=shape.attention_layers + more,
        moe_layers=shape.moe_layers + routed,
        dense_layers=shape.dense_layers + more - routed,
    )


def _pattern(words: Sequence[str]) -> str:
    """Letters of a hybrid's layers, or nothing where they say no layers."""
    pattern = words[0].partition("/")[0].replace("|", "") if words else ""
    return "" if set(pattern) - set("M*-E") else pattern


def _hybrid(shape: Shape, words: Sequence[str]) -> Shape:
    """A hybrid from its pattern: M a state-space mixer, * attention, - a feed-forward, E experts; | cuts stages.

    What follows a slash are layers that predict further ahead, which `mtp_layers` counts.
    """
    pattern = _pattern(words) or guessed_pattern(shape.layers)
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    inner = 2 * shape.hidden
    if "num-heads" in given and given["num-heads"].isdecimal():
        width = given.get("head-dim", "")
        inner = int(given["num-heads"]) * (int(width) if width.isdecimal() else _MAMBA_HEAD)
    return replace(
        shape,
        layers=len(pattern),
        tied="E" not in pattern,
        attention_layers=pattern.count("*"),
        dense_layers=pattern.count("-"),
        moe_layers=pattern.count("E"),
        mamba_layers=pattern.count("M"),
        mamba_inner=inner,
        mamba_state=_MAMBA_STATE,
    )
