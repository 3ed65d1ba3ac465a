"""The model that Megatron's arguments describe: a GPT unless others of them say that it is another."""

from __future__ import annotations

import re
from typing import Any

from strategy.trainers.architecture import SSM_STATE, WRITTEN_SHARE, Architecture, Kind, PositionKind
from strategy.trainers.settings import Settings

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceCase": 28996,
    "BertWordPieceLowerCase": 30522,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
    "GPTSentencePieceTokenizer": 256000,
    "SentencePieceTokenizer": 32000,
    "TikTokenizer": 131072,
    "NullTokenizer": 131072,
    "HuggingFaceTokenizer": 128256,
    "PretrainedFromHF": 50257,
}
"""Words of a tokenizer where no argument says how many there are: those of the models that it was made for."""
NAMED_VOCABULARIES = (
    ("deepseek", 129280), ("llama-3", 128256), ("nemotron_2_256k", 256000), ("250k", 250680), ("150k", 150000),
    ("t5", 32100), ("gpt2", 50257), ("mixtral", 32000), ("bigscience/tokenizer", 50257),
)  # fmt: skip
"""Words of a tokenizer whose name contains this."""
_HEAD = 64
"""Width of a head of a state-space mixer."""
_PADDED = 128
_LAYERS = re.compile(r"\[([01])\](?:\*(\d+))?")


def megatron_model(settings: Settings, sequence: int, tp: int) -> Architecture:
    """The architecture; `tp` since Megatron pads the vocabulary to a multiple of it."""
    width = settings.count("hidden-size")
    heads = settings.count("num-attention-heads")
    kind, layers, decoder_layers, share = _layers(settings, sequence)
    gated = settings.flag("swiglu")
    squared = settings.flag("squared-relu")
    attention = _attention(settings, width, heads)
    return Architecture(
        layers=layers,
        width=width,
        heads=heads,
        ffn=settings.maybe("ffn-hidden-size") or _default_ffn(settings, width, gated=gated),
        vocabulary=_vocabulary(settings, tp),
        kind=kind,
        gated=gated,
        activation="silu" if gated else "relu squared" if squared else "gelu",
        tied=not settings.flag("untie-embeddings-and-output-weights"),
        rms_norm=settings.word("normalization", {"LayerNorm": False, "RMSNorm": True}, "LayerNorm"),
        biases=(biases := not settings.flag("disable-bias-linear")),
        qkv_bias=biases or settings.flag("add-qkv-bias"),
        head_norm=settings.flag("qk-layernorm"),
        epsilon=settings.figure("norm-epsilon", 1e-5),
        **_positions(settings, sequence),
        **attention,
        **_experts(settings, layers, settings.maybe("ffn-hidden-size") or _default_ffn(settings, width, gated=gated)),
        **_hybrid(settings, width),
        **_linear(settings),
        ahead=settings.maybe("mtp-num-layers", least=0) or 0,
        decoder_layers=decoder_layers,
        decoder_share=share,
    )


def _layers(settings: Settings, sequence: int) -> tuple[Kind, int, int, float]:
    """Kind, layers in all, those of a decoder beside an encoder, and its share of the positions."""
    if "decoder-seq-length" in settings:
        layers = settings.maybe("num-layers") or 0
        encoder = settings.count("encoder-num-layers", layers or None)
        decoder = settings.count("decoder-num-layers", layers or None)
        share = settings.count("decoder-seq-length") / sequence
        return Kind.ENCODER_DECODER, encoder + decoder, decoder, share or WRITTEN_SHARE
    masked = str(settings.values.get("tokenizer-type", "")).startswith("Bert")
    masked = masked or settings.flag("bert-no-binary-head")
    if "hybrid-layer-pattern" in settings:
        pattern = _pattern(settings)
        return Kind.DECODER, len(pattern.replace("|", "")), 0, 1.0
    depth = settings.maybe("num-layers") or settings.maybe("encoder-num-layers")
    if depth is None:
        settings.missing("num-layers", "the number of layers")
    return (Kind.ENCODER if masked else Kind.DECODER), depth or 1, 0, 1.0


def _pattern(settings: Settings) -> str:
    """Letters of a hybrid's layers; what follows a slash predicts further ahead, which `mtp-num-layers` counts."""
    whole = str(settings.value("hybrid-layer-pattern"))
    pattern = whole.partition("/")[0]
    if not pattern.replace("|", "") or set(pattern) - set("M*-E|"):
        settings.wrong("hybrid-layer-pattern", whole, "letters of M, *, - and E, with | between stages")
        return "*"
    return pattern


def _hybrid(settings: Settings, width: int) -> dict[str, Any]:
    if "hybrid-layer-pattern" not in settings:
        settings.pass_over("no layer scans its positions", "mamba-*", "is-hybrid-model")
        return {}
    settings.pass_over("the pattern says it", "is-hybrid-model", "num-layers", "spec")
    pattern = _pattern(settings)
    head = settings.count("mamba-head-dim", _HEAD)
    inner = settings.maybe("mamba-num-heads")
    return {
        "pattern": pattern,
        "mixer_inner": inner * head if inner else 2 * width,
        "mixer_state": settings.count("mamba-state-dim", SSM_STATE),
    }


def _linear(settings: Settings) -> dict[str, Any]:
    """Layers of linear attention (gated delta rule), which are priced as state-space mixers."""
    if "experimental-attention-variant" not in settings:
        settings.pass_over("no attention is linear", "linear-*")
        return {}
    settings.word("experimental-attention-variant", {"gated_delta_net": 1}, "gated_delta_net")
    settings.assume("linear attention is priced as a state-space mixer of the same widths")
    settings.pass_over("a convolution of so few positions is no part of the price", "linear-conv-kernel-dim")
    every = settings.count("linear-attention-freq", 4)
    values = settings.count("linear-num-value-heads", 32) * settings.count("linear-value-head-dim", 128)
    keys = settings.count("linear-num-key-heads", 16) * settings.count("linear-key-head-dim", 128)
    return {"linear_every": every, "mixer_inner": values, "mixer_state": keys}


def _attention(settings: Settings, width: int, heads: int) -> dict[str, Any]:
    if settings.flag("multi-latent-attention"):
        settings.pass_over("latent attention has widths of its own", "kv-channels", "*query-group*")
        rotary = settings.count("qk-pos-emb-head-dim", 64)
        return {
            "key_heads": heads,
            "head_width": settings.count("qk-head-dim", 128) + rotary,
            "query_latent": settings.maybe("q-lora-rank") or 0,
            "key_latent": settings.count("kv-lora-rank", 512),
            "rotary_key": rotary,
            "value_width": settings.count("v-head-dim", 128),
        }
    settings.pass_over("attention is not latent", "q-lora-rank", "kv-lora-rank", "qk-*head-dim", "v-head-dim")
    grouped = settings.flag("group-query-attention")
    if not grouped:
        settings.pass_over("without group-query-attention every head has keys", "num-query-groups")
    return {
        "key_heads": settings.count("num-query-groups", 1) if grouped else heads,
        "head_width": settings.count("kv-channels", max(width // heads, 1)),
    }


def _default_ffn(settings: Settings, width: int, *, gated: bool) -> int:
    found = int(4 * width * 2 / 3) // 64 * 64 if gated else 4 * width
    settings.defaults["ffn-hidden-size"] = found
    return found


def _positions(settings: Settings, sequence: int) -> dict[str, Any]:
    kinds = {
        "learned_absolute": PositionKind.LEARNED, "rope": PositionKind.ROTARY, "rotary": PositionKind.ROTARY,
        "none": PositionKind.NONE, "alibi": PositionKind.ALIBI, "yarn": PositionKind.ROTARY,
        "relative": PositionKind.NONE,
    }  # fmt: skip
    hybrid = "hybrid-layer-pattern" in settings
    if settings.flag("multi-latent-attention"):
        kind = PositionKind.ROTARY
        settings.pass_over("latent attention turns a part of its own", "position-embedding-type", "rotary-percent")
    elif settings.flag("use-rotary-position-embeddings"):
        kind = PositionKind.ROTARY
        settings.pass_over("positions are rotary", "position-embedding-type", "*no-position-embedding")
    else:
        kind = settings.word("position-embedding-type", kinds, "none" if hybrid else "learned_absolute")
        if kind is not PositionKind.LEARNED:
            settings.pass_over("only learned positions can be left out", "no-position-embedding")
        elif settings.flag("no-position-embedding"):
            kind = PositionKind.NONE
    table = "max-position-embeddings"
    if kind is PositionKind.LEARNED:
        settings.pass_over("positions are learned", "rotary-*", "use-rope-scaling", "mscale*")
        return {"positions": kind, "table": settings.count(table, sequence)}
    settings.pass_over("only learned positions have a table", table)
    if kind is not PositionKind.ROTARY:
        settings.pass_over("positions are not rotary", "rotary-*", "use-rope-scaling", "mscale*")
        return {"positions": kind}
    return {
        "positions": kind,
        "rotary_base": settings.figure("rotary-base", 10000.0),
        "rotary_share": settings.figure("rotary-percent", 1.0),
    }


def _experts(settings: Settings, layers: int, ffn: int) -> dict[str, Any]:
    if "num-experts" not in settings:
        return {}
    counts = [int(word) for word in settings.words("num-experts") if word.isdecimal()]
    if not counts or min(counts) < 1:
        settings.wrong("num-experts", settings.value("num-experts"), "a number, or one for every layer that has them")
        return {}
    if counts == [1]:
        return {}
    deepspeed = "moe-expert-parallel-size" in settings
    if len(set(counts)) > 1:
        settings.assume("layers with unlike numbers of experts are priced with their mean number")
    # Megatron-DeepSpeed puts experts into every second layer, and one of them is chosen.
    first, every = (0, settings.count("expert-interval", 2)) if deepspeed else _frequency(settings, layers)
    gate = settings.word("moe-router-score-function", {"softmax": False, "sigmoid": True}, "softmax")
    shared = settings.maybe("moe-shared-expert-intermediate-size") or 0
    if deepspeed and "mlp-type" in settings:
        residual = settings.word("mlp-type", {"standard": False, "residual": True}, "standard")
        shared = ffn if residual else 0
    if not shared:
        settings.pass_over("no expert is shared", "moe-shared-*")
    return {
        "experts": round(sum(counts) / len(counts)),
        "choices": settings.count("topk" if deepspeed else "moe-router-topk", 1 if deepspeed else 2),
        "expert_ffn": settings.count("moe-ffn-hidden-size", ffn),
        "shared_ffn": shared,
        "shared_gate": settings.flag("moe-shared-expert-gate") if shared else False,
        "expert_latent": settings.maybe("moe-latent-size") or 0,
        "dense_first": first,
        "expert_every": every,
        "capacity": _capacity(settings, deepspeed=deepspeed),
        "sigmoid": gate,
        "normalised": True,
        "routed_scale": settings.figure("moe-router-topk-scaling-factor", 1.0) or 1.0,
        "groups": settings.maybe("moe-router-num-groups") or 1,
        "chosen_groups": settings.maybe("moe-router-group-topk") or 1,
        "balance": settings.figure("moe-loss-coeff" if deepspeed else "moe-aux-loss-coeff", 0.0),
    }


def _capacity(settings: Settings, *, deepspeed: bool) -> float:
    key = "moe-train-capacity-factor" if deepspeed else "moe-expert-capacity-factor"
    if deepspeed and settings.flag("disable-moe-token-dropping"):
        settings.pass_over("no token is dropped", "moe-*-capacity*")
        return 0.0
    return settings.figure(key, 1.0) if deepspeed else settings.figure(key, 0.0)


def _frequency(settings: Settings, layers: int) -> tuple[int, int]:
    """Layers before those with experts, and every how-many-th of the others has them."""
    text = str(settings.value("moe-layer-freq", 1)).strip()
    if text.isdecimal() and int(text) >= 1:
        return 0, int(text)
    runs = [(int(kind), int(count or 1)) for kind, count in _LAYERS.findall(text)]
    kinds = [kind for kind, count in runs for _ in range(min(count, layers))]
    first = kinds.index(1) if 1 in kinds else len(kinds)
    if len(kinds) != layers or 0 in kinds[first:]:
        settings.wrong("moe-layer-freq", text, f"a number, or [0]*a+[1]*b with a + b = {layers} layers")
        return 0, 1
    return first, 1


def _vocabulary(settings: Settings, tp: int) -> int:
    """Rows of the embedding, padded."""
    if "pad-vocab-size-to" in settings:
        settings.pass_over("pad-vocab-size-to says it", "vocab-*", "tokenizer-*", "make-vocab-*")
        return settings.count("pad-vocab-size-to")
    kind = settings.values.get("tokenizer-type")
    name = " ".join(str(settings.values.get(key, "")) for key in ("tokenizer-model", "tokenizer-name-or-path")).lower()
    if "vocab-size" in settings:
        words = settings.count("vocab-size")
        settings.pass_over("vocab-size says it", "tokenizer-*", "vocab-file", "merge-file")
    elif known := next((count for part, count in NAMED_VOCABULARIES if part in name), 0):
        words = known
        for key in ("tokenizer-model", "tokenizer-name-or-path"):
            settings.value(key)
        settings.pass_over("the tokenizer's name says it", "tokenizer-type")
    elif kind is not None and not str(kind).startswith("$"):
        words = settings.word("tokenizer-type", VOCABULARIES, "GPT2BPETokenizer")
        settings.pass_over("its type says how many words it has", "tokenizer-model", "tokenizer-name-or-path")
    else:
        words = VOCABULARIES["GPT2BPETokenizer"]
        settings.pass_over("a file that is not there", "tokenizer-*")
    settings.pass_over("its type says how many words it has", "vocab-file", "merge-file")
    if "vocab-size" not in settings:
        settings.defaults["vocab-size"] = words
    words += settings.maybe("vocab-extra-ids", least=0) or 0
    multiple = settings.count("make-vocab-size-divisible-by", _PADDED) * tp
    return -(-words // multiple) * multiple
