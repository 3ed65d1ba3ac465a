"""BERT: bidirectional encoders, trained to fill in masked tokens and to say whether one sentence follows another.

Devlin et al. 2019 (arXiv:1810.04805), sections 3.1 and A.2. Texts are packed to full length, so nothing is padding. The
loss is the sum of the token losses plus, once per token, that of the sample's next-sentence prediction: where every
token counts, its mean is the sum of the two means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Integers, Preset, Source
from strategy.nn.layers import Embedding, LayerNorm, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.nn.transformer import FeedForward, SelfAttention, check_activation
from strategy.sbp.tensor import DType, TensorSpec

EPSILON = 1e-12
"""Of every layer norm, as in the authors' code."""


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Dimensions of a BERT; the MLP is four times as wide as the model, and has this activation."""

    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    segments: int = 2
    activation: str = "gelu"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "sequence", "vocabulary", "segments"):
            if getattr(self, name) < 1:
                raise InputError("not a size", where=f"BERT: {name}", got=getattr(self, name), expected="at least 1")
        if self.width % self.heads:
            raise InputError("the width is no multiple of the heads", where="BERT", got=(self.width, self.heads))
        check_activation("BERT", self.activation)

    @property
    def encoder_parameters(self) -> int:
        """Embeddings, layers and pooler: what is published as the size of the model, without the heads of training."""
        h = self.width
        embeddings = (self.vocabulary + self.sequence + self.segments) * h + 2 * h
        return embeddings + self.layers * (12 * h * h + 13 * h) + h * h + h

    @property
    def parameters(self) -> int:
        """The encoder, the token head (a layer, a norm, a bias per token; its matrix is the embedding), the other."""
        h = self.width
        return self.encoder_parameters + (h * h + h) + 2 * h + self.vocabulary + 2 * h + 2

    @property
    def tokens_per_sample(self) -> int:
        """A sample is one context."""
        return self.sequence

    @property
    def batch(self) -> Mapping[str, Source]:
        """Random tokens, and what stood there."""
        tokens = Integers(self.vocabulary)
        return {"ids": tokens, "segments": Integers(self.segments), "labels": tokens, "follows": Integers(2)}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """ids, segments, labels[b, s], a label of -100 where nothing is predicted, and follows[b]."""
        tokens = TensorSpec((micro_batch, self.sequence), DType.INT32)
        return {"ids": tokens, "segments": tokens, "labels": tokens, "follows": TensorSpec((micro_batch,), DType.INT32)}

    def module(self) -> Module:
        """The model, to be traced."""
        return Bert(self)


class BertLayer(Module):
    """Post-norm transformer layer."""

    def __init__(self, config: BertConfig) -> None:
        self.attn = SelfAttention(config.width, config.heads, causal=False)
        self.norm1 = LayerNorm(config.width, epsilon=EPSILON)
        self.mlp = FeedForward(config.width, 4 * config.width, activation=config.activation)
        self.norm2 = LayerNorm(config.width, epsilon=EPSILON)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        x = inputs[0]
        x = self.norm1(x.apply("residual1", "add", self.attn(x)))
        normed: Tensor = self.norm2(x.apply("residual2", "add", self.mlp(x)))
        return normed


class Embeddings(Module):
    """Tokens, positions and segments, added up and normalised."""

    def __init__(self, config: BertConfig) -> None:
        self.token = Parameter((config.vocabulary, config.width), "normal(0.02)")
        self.position = Parameter((config.sequence, config.width), "normal(0.02)")
        self.segment = Embedding(config.segments, config.width)
        self.norm = LayerNorm(config.width, epsilon=EPSILON)

    def forward(self, *inputs: Tensor) -> Tensor:
        """ids, segments[b, s] -> [b, s, w]."""
        ids, segments = inputs
        x = self.parameter("token", ids).apply("rows", "gather", ids, attrs={"axis": 0})
        x = x.apply("add_position", "add", self.parameter("position", ids))
        normed: Tensor = self.norm(x.apply("add_segment", "add", self.segment(segments)))
        return normed


class TokenHead(Module):
    """A layer before the logits, whose matrix is the embedding."""

    def __init__(self, config: BertConfig) -> None:
        self.activation = config.activation
        self.fc = Linear(config.width, config.width)
        self.norm = LayerNorm(config.width, epsilon=EPSILON)
        self.bias = Parameter((config.vocabulary,))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] and the embedding [v, w] -> [b, s, v]."""
        x, token = inputs
        hidden: Tensor = self.norm(self.fc(x).apply("gelu", self.activation))
        return hidden.apply("logits", "matmul_nt", token).apply("bias_add", "add", self.parameter("bias", x))


class Bert(Module):
    """ids, segments, labels, follows -> summed loss and count."""

    def __init__(self, config: BertConfig) -> None:
        self.embed = Embeddings(config)
        self.layers = Layers([BertLayer(config) for _ in range(config.layers)])
        self.pooler = Linear(config.width, config.width)
        self.tokens = TokenHead(config)
        self.next = Linear(config.width, 2)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(ids[b, s], segments[b, s], labels[b, s], follows[b]) -> (loss[], token count[])."""
        ids, segments, labels, follows = inputs
        x = self.layers(self.embed(ids, segments))
        b, s, w = x.shape
        logits = self.tokens(x, self.embed.parameter("token", ids))
        token_loss, count = cross_entropy(logits, labels, label="token_loss")
        first = x.apply("first", "slice", attrs={"begin": (0, 0, 0), "end": (b, 1, w)}).reshape("first_token", (b, w))
        pooled = self.pooler(first).apply("pooled", "tanh")
        next_loss, _ = cross_entropy(self.next(pooled), follows, label="next_loss")
        weighted = next_loss.apply("next_loss.per_token", "scale", attrs={"factor": float(s)})
        return token_loss.apply("loss", "add", weighted), count


FAMILY = Family(
    "bert",
    BertConfig,
    {
        "bert-tiny": Preset(BertConfig(layers=2, width=16, heads=2, sequence=8, vocabulary=32), 8),
        "bert-base": Preset(BertConfig(layers=12, width=768, heads=12, sequence=512, vocabulary=30522), 256),
        "bert-large": Preset(BertConfig(layers=24, width=1024, heads=16, sequence=512, vocabulary=30522), 256),
    },
)
"""The uncased models; batches as in section A.2; bert-tiny is ours."""
