"""Weights of decoders: which tensors of a published file a parameter of ours is made of.

Theirs are [out, in], ours [in, out]. Files differ in what they hold as one matrix (queries, keys and values; a gate and
the layer that it gates; all experts), and in names; which way a file does it, its names say.

    model.layers.3.self_attn.q_proj.weight                      layers.3.attn.q.weight
    model.layers.3.self_attn.qkv_proj.weight, a part (phi3)     the same
    gpt_neox.layers.3.attention.query_key_value.weight, a part  the same
    model.layers.3.mlp.experts.0.up_proj.weight, ...            layers.3.moe.up, all experts in one

Norms around both branches are Gemma's, whose files hold one less than the gain. Elements that turn are in pairs
(0, 1), (2, 3), ... in DeepSeek's files, and in pairs (i, i + d/2) here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from strategy.models.decoder import DecoderConfig
from strategy.models.decoder_description import HeadNorm, NormPosition
from strategy.models.tensor_files import Array, Recipe
from strategy.sbp.tensor import Shape

Named = Iterator[tuple[str, Recipe]]
_CONSTANTS = re.compile(r".*\.(rotary_emb\.inv_freq|attention\.(masked_)?bias|e_score_correction_bias)")
"""What files hold beside weights; what corrects the choice of experts is left at zero."""
_SHARED = re.compile(r"model\.layers\.\d{1,6}\.(embed_tokens|shared_head\.head)\.weight")
"""Embedding and head, which layers ahead hold once more."""


def decoder_recipes(config: DecoderConfig, held: Collection[str]) -> dict[str, Recipe]:
    """Our name -> how it is made, for files that hold tensors of these names."""
    neox = any(name.startswith("gpt_neox.") for name in held)
    inner = "gpt_neox" if neox else "model"
    files = _Files(config, held, neox)
    found: dict[str, Recipe] = {}
    table = (config.vocabulary, config.width)
    found["token.weight"] = _same(f"{inner}.{'embed_in' if neox else 'embed_tokens'}.weight", table)
    for number, prefix in enumerate(_prefixes(config)):
        sparse = _sparse(config, number)
        found |= {f"{prefix}.{ours}": recipe for ours, recipe in files.layer(f"{inner}.layers.{number}", sparse)}
    found |= dict(files.norm("norm", f"{inner}.{'final_layer_norm' if neox else 'norm'}", config.width))
    for place in range(config.ahead):
        theirs = f"{inner}.layers.{config.depth + place}"
        if f"{theirs}.eh_proj.weight" in held:  # files that transformers saves have none: these start anew
            found |= dict(files.ahead(f"ahead.{place}", theirs))
    if not config.tied:
        found["head.weight"] = _turned("embed_out.weight" if neox else "lm_head.weight", table)
    return found


def left_out_of_decoders(config: DecoderConfig, name: str) -> bool:
    """Whether files hold a tensor that no parameter is made of: constants, a tied head, what layers ahead share."""
    if config.tied and name == "lm_head.weight":
        return True
    number = re.match(r"model\.layers\.(\d{1,6})\.", name)
    further = bool(config.key_latent) and number is not None and int(number[1]) >= config.depth + config.ahead
    return further or bool(_CONSTANTS.fullmatch(name) or _SHARED.fullmatch(name))


def _prefixes(config: DecoderConfig) -> Iterator[str]:
    """Where our layers are, in order."""
    period = len(config.kinds) - config.before - config.after
    yield from (f"before.{place}" for place in range(config.before))
    for layer in range(config.layers):
        yield from (f"layers.{layer}" + (f".{place}" if period > 1 else "") for place in range(period))
    yield from (f"after.{place}" for place in range(config.after))


def _sparse(config: DecoderConfig, number: int) -> bool:
    """Whether a layer has experts."""
    period, behind = len(config.kinds) - config.before - config.after, config.depth - config.after
    if number < config.before:
        return config.kinds[number][1]
    if number >= behind:
        return config.kinds[number - config.depth][1]
    return config.kinds[config.before + (number - config.before) % period][1]


def _same(name: str, shape: Shape) -> Recipe:
    return Recipe(((name, shape),), lambda sources: sources[0])


def _turned(name: str, shape: Shape) -> Recipe:
    """A matrix [out, in] as [in, out]."""
    return Recipe(((name, shape),), lambda sources: np.ascontiguousarray(sources[0].T))


def _rows(name: str, shape: Shape, chosen: Callable[[Array], Array]) -> Recipe:
    """Some rows of a matrix [out, in] as columns, or some elements of a vector."""
    return Recipe(((name, shape),), lambda sources: np.ascontiguousarray(chosen(sources[0]).T))


def _cut(begin: int, end: int) -> Callable[[Array], Array]:
    return lambda rows: rows[begin:end]


def _stacked(names: Sequence[str], shape: Shape) -> Recipe:
    """A matrix [out, in] per expert as [e, in, out]."""
    sources = tuple((name, shape) for name in names)
    return Recipe(sources, lambda found: np.stack([one.T for one in found]))


def _every_other(name: str, shape: Shape, first: int) -> Recipe:
    """Every other element of the last dim."""
    return Recipe(((name, shape),), lambda sources: np.ascontiguousarray(sources[0][..., first::2]))


def _unpaired(rows: Array) -> Array:
    """Rows in pairs (0, 1), (2, 3) as halves."""
    return np.concatenate([rows[..., 0::2, :], rows[..., 1::2, :]], axis=-2)


@dataclass(frozen=True, slots=True)
class _Files:
    """What the files of a decoder hold, and how.

    Attributes:
        config: the decoder.
        held: names of tensors.
        neox: they are named as GPT-NeoX's.
    """

    config: DecoderConfig
    held: Collection[str]
    neox: bool

    def layer(self, theirs: str, sparse: bool) -> Named:
        """Parameters of a layer by their names within it."""
        yield from self._norms(theirs)
        yield from self._latent(theirs) if self.config.key_latent else self._attention(theirs)
        yield from self._experts(theirs) if sparse else self._mlp("mlp", f"{theirs}.mlp", self.config.hidden)

    def ahead(self, ours: str, theirs: str) -> Named:
        """Parameters of what predicts one token further."""
        width = self.config.width
        for name, recipe in self.layer(theirs, self.config.kinds[-1][1]):
            yield f"{ours}.layer.{name}", recipe
        for mine, other in (("token_norm", "enorm"), ("stream_norm", "hnorm"), ("norm", "shared_head.norm")):
            yield from self.norm(f"{ours}.{mine}", f"{theirs}.{other}", width)
        yield f"{ours}.join.weight", _turned(f"{theirs}.eh_proj.weight", (width, 2 * width))

    def norm(self, ours: str, theirs: str, width: int) -> Named:
        """A gain, and a bias if there is one."""
        if self.config.norm_position == NormPosition.AROUND:
            source = ((f"{theirs}.weight", (width,)),)
            yield f"{ours}.weight", Recipe(source, lambda found: found[0].astype(np.float32) + np.float32(1))
        else:
            yield f"{ours}.weight", _same(f"{theirs}.weight", (width,))
        if f"{theirs}.bias" in self.held:
            yield f"{ours}.bias", _same(f"{theirs}.bias", (width,))

    def _norms(self, theirs: str) -> Named:
        names = {
            NormPosition.AFTER: ("post_attention_layernorm", "post_feedforward_layernorm"),
            NormPosition.AROUND: ("input_layernorm", "pre_feedforward_layernorm"),
        }.get(NormPosition(self.config.norm_position), ("input_layernorm", "post_attention_layernorm"))
        for ours, name in zip(("norm1", "norm2"), names, strict=True):
            yield from self.norm(ours, f"{theirs}.{name}", self.config.width)
        if self.config.norm_position == NormPosition.AROUND:
            yield from self.norm("norm1_after", f"{theirs}.post_attention_layernorm", self.config.width)
            yield from self.norm("norm2_after", f"{theirs}.post_feedforward_layernorm", self.config.width)

    def _linear(self, ours: str, theirs: str, outputs: int, inputs: int, *, bias: bool) -> Named:
        yield f"{ours}.weight", _turned(f"{theirs}.weight", (outputs, inputs))
        if bias:
            yield f"{ours}.bias", _same(f"{theirs}.bias", (outputs,))

    def _attention(self, theirs: str) -> Named:
        c = self.config
        queries, keys, values = c.heads * c.head_width, c.key_heads * c.head_width, c.key_heads * c.values
        sizes = (queries, keys, values)
        inner = f"{theirs}.{'attention' if self.neox else 'self_attn'}"
        ends = [sum(sizes[:count]) for count in range(4)]
        for place, name in enumerate("qkv"):
            fused, by_head = f"{inner}.qkv_proj", f"{inner}.query_key_value"
            if self.neox:
                chosen = self._of_heads(place)
                yield f"attn.{name}.weight", _rows(f"{by_head}.weight", (ends[3], c.width), chosen)
                if c.qkv_bias:
                    yield f"attn.{name}.bias", _rows(f"{by_head}.bias", (ends[3],), chosen)
            elif f"{fused}.weight" in self.held:
                shape = (ends[3], c.width)
                yield f"attn.{name}.weight", _rows(f"{fused}.weight", shape, _cut(ends[place], ends[place + 1]))
            else:
                yield from self._linear(f"attn.{name}", f"{inner}.{name}_proj", sizes[place], c.width, bias=c.qkv_bias)
        out = "dense" if self.neox else "o_proj"
        yield from self._linear("attn.proj", f"{inner}.{out}", c.width, c.heads * c.values, bias=c.output_bias)
        if c.head_norm != HeadNorm.NONE:
            whole = c.head_norm == HeadNorm.WHOLE
            yield from self.norm("attn.q_norm", f"{inner}.q_norm", queries if whole else c.head_width)
            yield from self.norm("attn.k_norm", f"{inner}.k_norm", keys if whole else c.head_width)
        if c.sinks:
            yield "attn.sinks", _same(f"{inner}.sinks", (c.heads,))

    def _of_heads(self, place: int) -> Callable[[Array], Array]:
        """Queries, keys or values of rows ordered head, (query, key, value), dim."""
        heads = self.config.heads

        def chosen(rows: Array) -> Array:
            parts = rows.reshape(heads, 3, -1, *rows.shape[1:])[:, place]
            return parts.reshape(-1, *rows.shape[1:])

        return chosen

    def _latent(self, theirs: str) -> Named:
        c, inner = self.config, f"{theirs}.self_attn"
        still, turning = c.head_width - c.rotary_key, c.rotary_key
        queries = "q_proj"
        if c.query_latent:
            queries = "q_b_proj"
            yield from self._linear("attn.q_down", f"{inner}.q_a_proj", c.query_latent, c.width, bias=c.qkv_bias)
            yield from self.norm("attn.q_norm", f"{inner}.q_a_layernorm", c.query_latent)

        def by_head(rows: Array) -> Array:
            parts = rows.reshape(c.heads, c.head_width, -1)
            joined = np.concatenate([parts[:, :still], _unpaired(parts[:, still:])], axis=1)
            return joined.reshape(rows.shape)

        shape = (c.heads * c.head_width, c.query_latent or c.width)
        yield "attn.q.weight", _rows(f"{inner}.{queries}.weight", shape, by_head)
        down, shape = f"{inner}.kv_a_proj_with_mqa", (c.key_latent + turning, c.width)
        yield "attn.kv_down.weight", _rows(f"{down}.weight", shape, _cut(0, c.key_latent))
        yield "attn.k_turning.weight", _rows(f"{down}.weight", shape, lambda rows: _unpaired(rows[c.key_latent :]))
        if c.qkv_bias:
            yield "attn.kv_down.bias", _rows(f"{down}.bias", shape[:1], _cut(0, c.key_latent))
            turned = Recipe(
                ((f"{down}.bias", shape[:1]),), lambda found: _unpaired(found[0][c.key_latent :, None])[:, 0]
            )
            yield "attn.k_turning.bias", turned
        yield from self.norm("attn.kv_norm", f"{inner}.kv_a_layernorm", c.key_latent)
        shape = (c.heads * (still + c.values), c.key_latent)
        for name, begin, end in (("k", 0, still), ("v", still, still + c.values)):

            def part(rows: Array, begin: int = begin, end: int = end) -> Array:
                return rows.reshape(c.heads, still + c.values, -1)[:, begin:end].reshape(-1, rows.shape[1])

            yield f"attn.{name}.weight", _rows(f"{inner}.kv_b_proj.weight", shape, part)
        yield from self._linear("attn.proj", f"{inner}.o_proj", c.width, c.heads * c.values, bias=c.output_bias)

    def _mlp(self, ours: str, theirs: str, hidden: int) -> Named:
        c = self.config
        if self.neox:
            yield from self._linear(f"{ours}.up", f"{theirs}.dense_h_to_4h", hidden, c.width, bias=c.mlp_bias)
            yield from self._linear(f"{ours}.down", f"{theirs}.dense_4h_to_h", c.width, hidden, bias=c.mlp_bias)
            return
        fused = f"{theirs}.gate_up_proj.weight"
        for place, name in enumerate(("gate", "up")):
            if fused in self.held:
                cut = _cut(place * hidden, (place + 1) * hidden)
                yield f"{ours}.{name}.weight", _rows(fused, (2 * hidden, c.width), cut)
            else:
                yield from self._linear(f"{ours}.{name}", f"{theirs}.{name}_proj", hidden, c.width, bias=c.mlp_bias)
        yield from self._linear(f"{ours}.down", f"{theirs}.down_proj", c.width, hidden, bias=c.mlp_bias)

    def _experts(self, theirs: str) -> Named:
        c, h, inner = self.config, self.config.width, self.config.expert_hidden
        older = f"{theirs}.block_sparse_moe"
        mixtral = f"{older}.gate.weight" in self.held
        moe = older if mixtral else f"{theirs}.mlp"
        router = f"{moe}.{'router' if c.router_bias else 'gate'}"
        yield "moe.router", _turned(f"{router}.weight", (c.experts, h))
        if c.router_bias:
            yield "moe.router_bias", _same(f"{router}.bias", (c.experts,))
        if c.expert_bias:
            yield from self._bounded(f"{moe}.experts")
        else:
            words = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
            for ours, word in zip(("gate", "up", "down"), words, strict=True):
                shape = (h, inner) if ours == "down" else (inner, h)
                names = [f"{moe}.experts.{expert}.{word}.weight" for expert in range(c.experts)]
                yield f"moe.{ours}", _stacked(names, shape)
        if c.shared_hidden:
            shared = "shared_expert" if c.shared_gate else "shared_experts"
            yield from self._mlp("shared.mlp", f"{moe}.{shared}", c.shared_hidden)
        if c.shared_gate:
            yield from self._linear("shared.share", f"{moe}.shared_expert_gate", 1, h, bias=False)

    def _bounded(self, theirs: str) -> Named:
        """All experts in one, the gate and the layer that it gates by turns."""
        c, h, inner = self.config, self.config.width, self.config.expert_hidden
        for first, name in enumerate(("gate", "up")):
            yield f"moe.{name}", _every_other(f"{theirs}.gate_up_proj", (c.experts, h, 2 * inner), first)
            yield f"moe.{name}_bias", _every_other(f"{theirs}.gate_up_proj_bias", (c.experts, 2 * inner), first)
        yield "moe.down", _same(f"{theirs}.down_proj", (c.experts, inner, h))
        yield "moe.down_bias", _same(f"{theirs}.down_proj_bias", (c.experts, h))
