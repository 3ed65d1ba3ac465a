"""Decoders: the description that models of the Llama kind have in common, each of its features a field.

A layer attends, then applies an MLP or a mixture of experts; layers differ by how far they look back (`windows`) and by
which of the two they have (`sparse`). What repeats is a *period* of layers: one, or several that differ:

    before   layers before those that repeat     DeepSeek-V3: 3 with an MLP
    period   repeated `layers` times              58 times 1 with experts; Gemma 2: 21 times (window, all)
    after    what is left at the end              Gemma 3 with 26 layers: 4 times 6, and 2

`windows` and `sparse` name them in this order: before, one period, after. The loss is the sum of the token losses, a
share of the balancing losses of all layers with experts, and a share of the losses of what predicts further `ahead`.

Rotary positions: Su et al. 2021 (arXiv:2104.09864). Grouped keys: Ainslie et al. 2023 (arXiv:2305.13245).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from strategy.base.errors import InputError, report
from strategy.models.base import Source, Tokens
from strategy.models.text import TextBatches
from strategy.nn.transformer import ACTIVATIONS


class NormPosition(StrEnum):
    """Where the norms of a layer are."""

    BEFORE = "before"
    """x + f(norm(x))"""
    AFTER = "after"
    """x + norm(f(x))"""
    AROUND = "around"
    """x + norm(f(norm(x)))"""
    PARALLEL = "parallel"
    """x + attention(norm(x)) + mlp(norm'(x))"""


class HeadNorm(StrEnum):
    """What of queries and keys is normalised before they turn."""

    NONE = "none"
    HEAD = "head"
    """Every head."""
    WHOLE = "whole"
    """All heads as one vector."""


class Router(StrEnum):
    """What a router's logits become."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


_SIZES = ("layers", "width", "heads", "key_heads", "head_width", "hidden", "sequence", "vocabulary")
_COUNTS = (
    *("before", "after", "experts", "choices", "expert_hidden", "shared_hidden", "rotary_width"),
    *("query_latent", "key_latent", "rotary_key", "value_width", "ahead"),
)


@dataclass(frozen=True, slots=True)
class DecoderDescription(TextBatches):
    """Dimensions and features of a decoder.

    Attributes:
        layers: how often the period is repeated.
        width: of the residual stream.
        heads, key_heads: of queries; of keys and values.
        head_width: elements of a head of queries and keys.
        hidden: width of the MLP; of layers without experts, if there are such.
        sequence, vocabulary: tokens of a sample; rows of the embedding.
        before, after: layers that do not repeat.
        windows: per layer (see above), the positions that a query looks back at, itself included; 0 is all.
        sparse: per layer, 1 where it has experts.
        rotary_base: of the angles; 0 turns nothing.
        rotary_width: elements of a head that turn; 0 is all.
        rotary_frequencies: in place of those of the base, one per pair that turns.
        rotary_scale: what turns is multiplied by it.
        window_rotary_base: of layers with a window, in place of the above; 0 is none of their own.
        learned_positions: a learned vector per position is added to the embedded tokens.
        layer_norm: norms have a mean and a bias; else they are RMS norms.
        epsilon: of norms.
        norm_position, head_norm: see there.
        qkv_bias, output_bias, mlp_bias: which linear maps have one.
        score_scale: of products of queries and keys; 0 is 1 / sqrt(head_width).
        score_cap, logit_cap: bound of scores and of logits, cap tanh(x / cap); 0 is none.
        sinks: a learned score per head that takes its share of every soft-max.
        query_latent: width of what queries are made of; 0 is the residual stream itself.
        key_latent: width of what keys and values are made of; 0 is no latent attention.
        rotary_key: elements of a key that turn, the same for all heads, with latent attention.
        value_width: elements of a head of values; 0 is head_width.
        activation: of MLPs and experts.
        gated: MLPs multiply two hidden layers.
        experts, choices: in a layer; of a token.
        expert_hidden: width inside an expert.
        shared_hidden: of the MLP that every token takes beside its experts; 0 is none.
        shared_gate: that MLP is gated by a figure per token.
        router: see there.
        router_bias: a bias of its logits.
        normalised: weights of a token's experts sum to one.
        routed_scale: of these weights.
        groups, chosen_groups: experts lie in groups, and a token chooses among those of its best groups.
        expert_bias, gate_limit: experts' linear maps have biases; gates and inner layers are bounded (gpt-oss).
        balance: share of the balancing losses in the loss; 0 leaves them out.
        ahead: modules behind the last layer that each predict one token further (DeepSeek-V3: arXiv:2412.19437, section
            2.2); they share embedding and head.
        ahead_share: of the mean of their losses in the loss.
        tied: the head is the embedding.
        embedding_scale: of embedded tokens.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    sequence: int
    vocabulary: int
    before: int = 0
    after: int = 0
    windows: tuple[int, ...] = (0,)
    sparse: tuple[int, ...] = (0,)
    rotary_base: float = 10000.0
    rotary_width: int = 0
    rotary_frequencies: tuple[float, ...] = ()
    rotary_scale: float = 1.0
    window_rotary_base: float = 0.0
    learned_positions: bool = False
    layer_norm: bool = False
    epsilon: float = 1e-5
    norm_position: str = NormPosition.BEFORE
    head_norm: str = HeadNorm.NONE
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    sinks: bool = False
    query_latent: int = 0
    key_latent: int = 0
    rotary_key: int = 0
    value_width: int = 0
    activation: str = "silu"
    gated: bool = True
    experts: int = 0
    choices: int = 0
    expert_hidden: int = 0
    shared_hidden: int = 0
    shared_gate: bool = False
    router: str = Router.SOFTMAX
    router_bias: bool = False
    normalised: bool = True
    routed_scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    expert_bias: bool = False
    gate_limit: float = 0.0
    balance: float = 0.0
    tied: bool = False
    embedding_scale: float = 1.0
    ahead: int = 0
    ahead_share: float = 0.3

    def __post_init__(self) -> None:
        report([*self._size_problems(), *self._figure_problems(), *self._shape_problems()], where="decoder")

    def _size_problems(self) -> list[InputError]:
        found = []
        for names, least in ((_SIZES, 1), (_COUNTS, 0), (("groups", "chosen_groups"), 1)):
            for name in names:
                if getattr(self, name) < least:
                    where, got = f"decoder: {name}", getattr(self, name)
                    found.append(InputError("not a size", where=where, got=got, expected=f"at least {least}"))
        return found

    def _figure_problems(self) -> list[InputError]:
        found = []
        positive = {
            "epsilon": self.epsilon,
            "rotary_scale": self.rotary_scale,
            "routed_scale": self.routed_scale,
            "embedding_scale": self.embedding_scale,
        }
        least = {
            name: 0.0 for name in ("score_scale", "score_cap", "logit_cap", "gate_limit", "balance", "ahead_share")
        }
        found += [
            InputError("not a figure", where=f"decoder: {name}", got=value, expected="finite and above 0")
            for name, value in positive.items()
            if not 0 < value < math.inf
        ]
        found += [
            InputError("not a figure", where=f"decoder: {name}", got=getattr(self, name), expected="finite and >= 0")
            for name in least
            if not 0 <= getattr(self, name) < math.inf
        ]
        for name in ("rotary_base", "window_rotary_base"):
            if not (getattr(self, name) == 0 or 1 < getattr(self, name) < math.inf):
                where, got = f"decoder: {name}", getattr(self, name)
                found.append(InputError("not a base", where=where, got=got, expected="above 1, or 0 for none"))
        words = {"norm_position": NormPosition, "head_norm": HeadNorm, "router": Router, "activation": ACTIVATIONS}
        found += [
            InputError("unknown word", where=f"decoder: {name}", got=getattr(self, name), expected=", ".join(known))
            for name, known in words.items()
            if getattr(self, name) not in list(known)
        ]
        return found

    def _shape_problems(self) -> list[InputError]:
        """What does not go together."""
        kinds, period = len(self.windows), len(self.windows) - self.before - self.after
        turning = self.rotary_width or self.head_width
        rules = (
            (self.heads % max(1, self.key_heads) == 0, "the heads are no multiple of the key heads",
             (self.heads, self.key_heads)),
            (len(self.sparse) == kinds and period >= 1, "windows and sparse do not name the layers",
             (self.before, self.windows, self.sparse, self.after)),
            (min(self.windows, default=0) >= 0 and set(self.sparse) <= {0, 1}, "no such layers",
             (self.windows, self.sparse)),
            (turning <= self.head_width and turning % 2 == 0, "no such part of a head turns", turning),
            (not self.rotary_frequencies or len(self.rotary_frequencies) == (self.rotary_key or turning) // 2,
             "not a frequency per pair that turns", len(self.rotary_frequencies)),
            (1 in self.sparse or not self.experts, "experts in no layer", self.experts),
            (1 not in self.sparse or 1 <= self.choices <= self.experts, "not so many choices of experts",
             (self.choices, self.experts)),
            (1 not in self.sparse or self.expert_hidden >= 1, "experts have no width", self.expert_hidden),
            (self.experts % max(1, self.groups) == 0 and self.chosen_groups <= self.groups, "no such groups of experts",
             (self.experts, self.groups, self.chosen_groups)),
            (not self.key_latent or (0 < self.rotary_key < self.head_width and self.rotary_key % 2 == 0
                                     and self.key_heads == self.heads and self.value_width >= 1),
             "no such latent attention", (self.rotary_key, self.head_width, self.value_width, self.key_heads)),
        )  # fmt: skip
        return [InputError(problem, where="decoder", got=got) for legal, problem, got in rules if not legal]

    @property
    def kinds(self) -> tuple[tuple[int, bool], ...]:
        """(window, whether it has experts) of the layers before, of one period, and after."""
        return tuple((window, bool(sparse)) for window, sparse in zip(self.windows, self.sparse, strict=True))

    @property
    def depth(self) -> int:
        """Layers in all."""
        period = len(self.windows) - self.before - self.after
        return self.before + self.layers * period + self.after

    @property
    def values(self) -> int:
        """Elements of a head of values."""
        return self.value_width or self.head_width

    @property
    def batch(self) -> Mapping[str, Source]:
        """Tokens of a text, as labels the token after each, and those further ahead."""
        further = {f"labels{k}": Tokens(self.vocabulary, k) for k in range(2, self.ahead + 2)}
        return {"ids": Tokens(self.vocabulary), "labels": Tokens(self.vocabulary, 1), **further}

    @property
    def parameters(self) -> int:
        """Number of trained elements, those of all experts and of what predicts further ahead included."""
        period = self.kinds[self.before : len(self.kinds) - self.after]
        ends = (*self.kinds[: self.before], *self.kinds[len(self.kinds) - self.after :])
        layers = sum(self._layer_parameters(sparse) for _, sparse in ends)
        layers += self.layers * sum(self._layer_parameters(sparse) for _, sparse in period)
        table = ((1 if self.tied else 2) * self.vocabulary + self.learned_positions * self.sequence) * self.width
        return table + layers + self._norm_parameters(self.width) + self.ahead_parameters

    @property
    def ahead_parameters(self) -> int:
        """Elements of what predicts further ahead; embedding and head are the model's own."""
        module = 2 * self.width**2 + 3 * self._norm_parameters(self.width)
        return self.ahead * (module + self._layer_parameters(self.kinds[-1][1]))

    def _norm_parameters(self, width: int) -> int:
        return width * (2 if self.layer_norm else 1)

    def _layer_parameters(self, sparse: bool) -> int:
        norms = (4 if self.norm_position == NormPosition.AROUND else 2) * self._norm_parameters(self.width)
        return norms + self._attention_parameters() + (self._moe_parameters() if sparse else self._mlp_parameters())

    def _attention_parameters(self) -> int:
        h, queries = self.width, self.heads * self.head_width
        found = self.heads * self.values * h + self.output_bias * h + self.sinks * self.heads
        if self.key_latent:
            latent = (h + queries) * self.query_latent + self.query_latent if self.query_latent else h * queries
            inner = self.head_width - self.rotary_key + self.values
            return found + latent + h * (self.key_latent + self.rotary_key) + self.key_latent * (1 + self.heads * inner)
        keys, values = self.key_heads * self.head_width, self.key_heads * self.values
        normed = {HeadNorm.NONE: 0, HeadNorm.HEAD: 2 * self.head_width, HeadNorm.WHOLE: queries + keys}
        return found + (h + self.qkv_bias) * (queries + keys + values) + normed[HeadNorm(self.head_norm)]

    def _mlp_parameters(self) -> int:
        inner = (2 if self.gated else 1) * self.hidden
        return self.width * (inner + self.hidden) + self.mlp_bias * (inner + self.width)

    def _moe_parameters(self) -> int:
        h, inner = self.width, (2 if self.gated else 1) * self.expert_hidden
        expert = h * (inner + self.expert_hidden) + self.expert_bias * (inner + h)
        shared = 3 * h * self.shared_hidden + self.shared_gate * h
        return (h + self.router_bias) * self.experts + self.experts * expert + shared
