"""Architecture: a language model in the words that configurations of trainers have in common.

It says no more than they do: `shape` makes of it what the closed form prices, `description` the model that a search
lays out, where we have that model. A model of ours that no architecture describes in full cannot be exported whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from strategy.base.errors import InputError
from strategy.closed_form.job import Shape
from strategy.models import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.decoder_description import HeadNorm, Router
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig


class Kind(StrEnum):
    """Which positions a layer looks at."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"


class PositionKind(StrEnum):
    """How a model knows where a token stands."""

    LEARNED = "learned"
    ROTARY = "rotary"
    ALIBI = "alibi"
    NONE = "none"


WRITTEN_SHARE = 0.25
"""Of positions that a T5 writes over those that it reads, where the file does not say."""
SSM_STATE = 128


@dataclass(frozen=True, slots=True)
class Architecture:
    """Dimensions and features of a model; what it lacks is 0, false or empty.

    Attributes:
        layers: in all; of an encoder-decoder, those of both; of a hybrid, the letters of its pattern.
        width, heads, key_heads, head_width: of the residual stream; of queries; of keys and values; of one head.
        ffn: inner width of an MLP.
        vocabulary: rows of the embedding, padding included.
        gated, activation, tied, rms_norm, biases, qkv_bias, head_norm: see `DecoderConfig`.
        epsilon: of norms.
        positions, table: how positions are known; rows of the table of learned ones.
        rotary_base, rotary_share: of rotary positions; the part of a head that turns.
        window, window_every: positions that a query looks back at, in every so-many-th layer (0: everywhere).
        query_latent, key_latent, rotary_key, value_width: of latent attention.
        experts, choices, expert_ffn, shared_ffn, shared_gate, expert_latent: of layers with experts.
        dense_first, expert_every: layers before those with experts; from there on every so-many-th has them.
        capacity: of an expert over an even demand; 0 drops nothing.
        sigmoid, normalised, routed_scale, groups, chosen_groups, balance: of the router, see `DecoderConfig`.
        ahead: depths of predicting tokens further ahead.
        pattern: of a hybrid: M a state-space mixer, * attention, - an MLP, E experts.
        mixer_inner, mixer_state: of state-space mixers.
        linear_every: every so-many-th layer attends, the others are linear attention.
        decoder_layers, decoder_share: of an encoder-decoder.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    ffn: int
    vocabulary: int
    kind: Kind = Kind.DECODER
    gated: bool = False
    activation: str = "gelu"
    tied: bool = False
    rms_norm: bool = False
    biases: bool = False
    qkv_bias: bool = False
    head_norm: bool = False
    epsilon: float = 1e-5
    positions: PositionKind = PositionKind.ROTARY
    table: int = 0
    rotary_base: float = 10000.0
    rotary_share: float = 1.0
    window: int = 0
    window_every: int = 1
    query_latent: int = 0
    key_latent: int = 0
    rotary_key: int = 0
    value_width: int = 0
    experts: int = 0
    choices: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    expert_latent: int = 0
    dense_first: int = 0
    expert_every: int = 1
    capacity: float = 0.0
    sigmoid: bool = False
    normalised: bool = True
    routed_scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    balance: float = 0.0
    ahead: int = 0
    pattern: str = ""
    mixer_inner: int = 0
    mixer_state: int = 0
    linear_every: int = 0
    decoder_layers: int = 0
    decoder_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "key_heads", "head_width", "vocabulary"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"model: {name}", got=getattr(self, name), expected="at least 1")
        if self.experts and not 1 <= self.choices <= self.experts:
            got = (self.choices, self.experts)
            raise InputError("not so many choices of experts", where="model", got=got)

    @property
    def sparse(self) -> tuple[bool, ...]:
        """Which layers have experts."""
        first, every = self.dense_first, self.expert_every
        return tuple(bool(self.experts) and at >= first and (at - first + 1) % every == 0 for at in range(self.layers))


def shape_of(model: Architecture, sequence: int) -> Shape:
    """What the closed form prices."""
    routed = sum(model.sparse)
    window = min(model.window or sequence, sequence) / sequence
    windowed = model.layers if model.window_every <= 1 else -(-model.layers // model.window_every)
    found = Shape(
        layers=model.layers,
        hidden=model.width,
        heads=model.heads,
        kv_heads=model.heads if model.key_latent else model.key_heads,
        head_qk=model.head_width,
        head_v=model.value_width or model.head_width,
        ffn=model.ffn,
        vocab=model.vocabulary,
        gated=model.gated,
        tied=model.tied,
        attention_layers=model.layers,
        dense_layers=model.layers - routed,
        q_rank=model.query_latent,
        kv_rank=model.key_latent + model.rotary_key if model.key_latent else 0,
        attended=1 - (1 - window) * windowed / model.layers,
        moe_layers=routed,
        experts=model.experts,
        top_k=model.choices,
        expert_ffn=model.expert_ffn,
        shared_ffn=model.shared_ffn,
        latent=model.expert_latent,
        capped=model.capacity > 0,
    )
    if model.pattern:
        found = _hybrid(found, model)
    if model.linear_every:
        attending = model.layers // model.linear_every
        found = replace(
            found,
            attention_layers=attending,
            mamba_layers=model.layers - attending,
            mamba_inner=model.mixer_inner,
            mamba_state=model.mixer_state,
        )
    if model.kind is Kind.ENCODER_DECODER:
        found = replace(
            found,
            decoder_layers=model.decoder_layers,
            attention_layers=model.layers + model.decoder_layers,
            decoder_share=model.decoder_share,
            logit_share=model.decoder_share,
        )
    more = model.ahead if routed else 0
    return replace(
        found,
        mtp_layers=model.ahead,
        attention_layers=found.attention_layers + model.ahead,
        moe_layers=found.moe_layers + more,
        dense_layers=found.dense_layers + model.ahead - more,
    )


def _hybrid(shape: Shape, model: Architecture) -> Shape:
    counts = {letter: model.pattern.count(letter) for letter in "M*-E"}
    return replace(
        shape,
        layers=sum(counts.values()),
        attention_layers=counts["*"],
        dense_layers=counts["-"],
        moe_layers=counts["E"],
        mamba_layers=counts["M"],
        mamba_inner=model.mixer_inner,
        mamba_state=model.mixer_state,
    )


def unbuilt(model: Architecture) -> str:
    """Why we have no such model to lay out; nothing, if we have."""
    reasons = (
        (model.kind is not Kind.DECODER, f"an {model.kind}"),
        (bool(model.pattern or model.linear_every), "layers that scan their positions"),
        (model.ahead > 0, "predicting tokens further ahead"),
        (model.expert_latent > 0, "experts of a narrower stream"),
        (bool(model.experts) and model.capacity > 0, "experts with a capacity"),
        (model.activation not in ("silu", "gelu"), f"the activation {model.activation}"),
        (bool(model.experts) and not model.gated, "experts without gates"),
    )
    return next((reason for there, reason in reasons if there), "")


def description(model: Architecture, sequence: int) -> Model:
    """The model that a search lays out.

    Raises:
        InputError: we have no such model.
    """
    if why := unbuilt(model):
        raise InputError("no model of ours is like this", where="model", got=why)
    if model == of_model(gpt := _gpt(model, max(model.table, sequence))):
        return replace(gpt, sequence=sequence)
    before = model.dense_first if model.experts else 0
    windows = tuple(
        model.window if model.window < sequence and at % model.window_every == 0 else 0 for at in range(model.layers)
    )
    kinds = list(zip(windows, map(int, model.sparse), strict=True))
    period = next(
        size
        for size in range(1, len(kinds) - before + 1)
        if (len(kinds) - before) % size == 0
        and kinds[before:] == kinds[before : before + size] * ((len(kinds) - before) // size)
    )
    named = kinds[: before + period]
    turning = round(model.head_width * model.rotary_share)
    return DecoderConfig(
        layers=(model.layers - before) // period,
        width=model.width,
        heads=model.heads,
        key_heads=model.key_heads,
        head_width=model.head_width,
        hidden=model.ffn or model.expert_ffn,
        sequence=sequence,
        vocabulary=model.vocabulary,
        before=before,
        windows=tuple(window for window, _ in named),
        sparse=tuple(sparse for _, sparse in named),
        rotary_base=model.rotary_base if model.positions is PositionKind.ROTARY else 0.0,
        learned_positions=model.positions is PositionKind.LEARNED,
        rotary_width=0 if turning == model.head_width or model.key_latent else turning - turning % 2,
        layer_norm=not model.rms_norm,
        epsilon=model.epsilon,
        head_norm=HeadNorm.HEAD if model.head_norm and not model.key_latent else HeadNorm.NONE,
        qkv_bias=model.biases or model.qkv_bias,
        output_bias=model.biases,
        mlp_bias=model.biases and not all(model.sparse),
        query_latent=model.query_latent,
        key_latent=model.key_latent,
        rotary_key=model.rotary_key,
        value_width=model.value_width,
        activation=model.activation,
        gated=model.gated,
        experts=model.experts,
        choices=model.choices,
        expert_hidden=model.expert_ffn,
        shared_hidden=model.shared_ffn,
        shared_gate=model.shared_gate,
        router=Router.SIGMOID if model.sigmoid else Router.SOFTMAX,
        router_bias=False,
        normalised=model.normalised,
        routed_scale=model.routed_scale,
        groups=model.groups,
        chosen_groups=model.chosen_groups,
        balance=model.balance,
        tied=model.tied,
    )


def _gpt(model: Architecture, positions: int) -> GptConfig:
    """A GPT of these sizes, whether or not it is this model."""
    heads = model.heads if model.width % model.heads == 0 else 1
    return GptConfig(model.layers, model.width, heads, positions, model.vocabulary)


def of_model(model: Model) -> Architecture:
    """A model of ours as an architecture; `description` makes the same model of it where it says all of it.

    Raises:
        InputError: it is no decoder of text.
    """
    if isinstance(model, GptConfig):
        head = model.width // model.heads
        return Architecture(
            model.layers, model.width, model.heads, model.heads, head, 4 * model.width, model.vocabulary, tied=True,
            biases=True, qkv_bias=True, positions=PositionKind.LEARNED, table=model.sequence,
        )  # fmt: skip
    if isinstance(model, LlamaConfig | MixtralConfig):
        return of_model(as_decoder(model))
    if not isinstance(model, DecoderConfig):
        expected = "GPT, Llama, Mixtral or another decoder of text"
        raise InputError(
            "trainers of language models cannot say this model", got=type(model).__name__, expected=expected
        )
    period = model.sparse[model.before : len(model.sparse) - model.after]
    windows = model.windows[model.before : len(model.windows) - model.after]
    return Architecture(
        layers=model.depth,
        width=model.width,
        heads=model.heads,
        key_heads=model.key_heads,
        head_width=model.head_width,
        ffn=model.hidden,
        vocabulary=model.vocabulary,
        gated=model.gated,
        activation=model.activation,
        tied=model.tied,
        rms_norm=not model.layer_norm,
        biases=model.output_bias,
        qkv_bias=model.qkv_bias,
        head_norm=model.head_norm == HeadNorm.HEAD,
        epsilon=model.epsilon,
        positions=_positions_of(model),
        table=model.sequence if model.learned_positions else 0,
        rotary_base=model.rotary_base or 10000.0,
        rotary_share=(model.rotary_width or model.head_width) / model.head_width,
        window=max(windows),
        window_every=len(windows) if len(set(windows)) > 1 else 1,
        query_latent=model.query_latent,
        key_latent=model.key_latent,
        rotary_key=model.rotary_key,
        value_width=model.value_width,
        experts=model.experts,
        choices=model.choices,
        expert_ffn=model.expert_hidden,
        shared_ffn=model.shared_hidden,
        shared_gate=model.shared_gate,
        dense_first=model.before if model.experts else 0,
        expert_every=len(period) if model.experts and sum(period) < len(period) else 1,
        sigmoid=model.router == Router.SIGMOID,
        normalised=model.normalised,
        routed_scale=model.routed_scale,
        groups=model.groups,
        chosen_groups=model.chosen_groups,
        balance=model.balance,
    )


def _positions_of(model: DecoderConfig) -> PositionKind:
    if model.learned_positions:
        return PositionKind.LEARNED
    return PositionKind.ROTARY if model.rotary_base else PositionKind.NONE


def as_decoder(model: Model) -> Model:
    """A Llama or a Mixtral as the decoder that it is; other models as they are."""
    if isinstance(model, LlamaConfig):
        return DecoderConfig(
            model.layers, model.width, model.heads, model.key_heads, model.width // model.heads, model.hidden,
            model.sequence, model.vocabulary, rotary_base=model.rotary_base,
        )  # fmt: skip
    if isinstance(model, MixtralConfig) and not model.capacity_factor:
        return DecoderConfig(
            model.layers, model.width, model.heads, model.key_heads, model.width // model.heads, model.hidden,
            model.sequence, model.vocabulary, rotary_base=model.rotary_base, sparse=(1,), experts=model.experts,
            choices=model.choices, expert_hidden=model.hidden, balance=model.balance,
        )  # fmt: skip
    return model
