"""Wide and deep: a recommender that adds a linear model of crossed features and an MLP over embeddings.

Cheng et al. 2016 (arXiv:1606.07792), section 3. Nearly all of it are the two tables, which a cluster splits by rows or
columns. The loss is the sum of the samples' cross-entropies of click and no click.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.models.base import Family, Integers, Preset, RandomFeatures, Source
from strategy.nn.layers import Embedding, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor
from strategy.sbp.tensor import DType, TensorSpec


@dataclass(frozen=True, slots=True)
class WideDeepConfig:
    """Dimensions: of every sample `wide` crossed features, `deep` ids of a category and `dense` figures.

    A first map leads to the width, `layers` hidden maps follow.
    """

    layers: int
    width: int
    vocabulary: int
    embedding: int
    deep: int
    wide: int
    dense: int

    def __post_init__(self) -> None:
        for name in ("layers", "width", "vocabulary", "embedding", "deep", "wide", "dense"):
            if getattr(self, name) < 1:
                where = f"wide and deep: {name}"
                raise InputError("not a size", where=where, got=getattr(self, name), expected="at least 1")

    @property
    def deep_inputs(self) -> int:
        """Width of what enters the MLP."""
        return self.deep * self.embedding + self.dense

    @property
    def parameters(self) -> int:
        """Both tables, and the weights and biases of `layers` + 2 linear maps."""
        h = self.width
        maps = (self.deep_inputs + 1) * h + self.layers * (h + 1) * h + h + 1
        return self.vocabulary * (self.embedding + 1) + maps

    @property
    def tokens_per_sample(self) -> int:
        """A sample has no tokens."""
        return 1

    @property
    def batch(self) -> Mapping[str, Source]:
        """Random ids, and figures that resemble those of the same class."""
        ids = Integers(self.vocabulary)
        return {"wide": ids, "deep": ids, "dense": RandomFeatures("clicks"), "clicks": Integers(2)}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """wide[b, i], deep[b, j], dense[b, k] and clicks[b]."""
        return {
            "wide": TensorSpec((micro_batch, self.wide), DType.INT32),
            "deep": TensorSpec((micro_batch, self.deep), DType.INT32),
            "dense": TensorSpec((micro_batch, self.dense)),
            "clicks": TensorSpec((micro_batch,), DType.INT32),
        }

    def module(self) -> Module:
        """The model, to be traced."""
        return WideDeep(self)


class DeepLayer(Module):
    """A linear map and a ReLU; the start keeps the variance (He et al. 2015, arXiv:1502.01852)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.fc = Linear(inputs, outputs, std=math.sqrt(2 / inputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, inputs] -> [b, outputs]."""
        hidden: Tensor = self.fc(inputs[0])
        return hidden.apply("relu", "relu")


class WideDeep(Module):
    """Features and clicks -> summed loss and count."""

    def __init__(self, config: WideDeepConfig) -> None:
        self.wide = Embedding(config.vocabulary, 1)
        self.deep = Embedding(config.vocabulary, config.embedding, std=0.05)
        self.first = DeepLayer(config.deep_inputs, config.width)
        self.layers = Layers([DeepLayer(config.width, config.width) for _ in range(config.layers)])
        self.head = Linear(config.width, 1)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(wide[b, i], deep[b, j], dense[b, k], clicks[b]) -> (loss[], count[])."""
        wide, deep, dense, clicks = inputs
        linear = self.wide(wide).apply("wide_sum", "reduce_sum", attrs={"axes": (1,), "keepdims": 0})
        rows = self.deep(deep)
        b, fields, size = rows.shape
        x = rows.reshape("flat", (b, fields * size)).apply("features", "concat", dense, attrs={"axis": 1})
        score = linear.apply("score", "add", self.head(self.layers(self.first(x))))
        return cross_entropy(two_classes(score), clicks)


def two_classes(score: Tensor) -> Tensor:
    """[b, 1] -> logits [b, 2]: the soft-max over (-z / 2, z / 2) is the logistic function of z."""
    yes = score.apply("yes", "scale", attrs={"factor": 0.5})
    return yes.apply("no", "neg").apply("logits", "concat", yes, attrs={"axis": 1})


FAMILY = Family(
    "wide-and-deep",
    WideDeepConfig,
    {
        "wide-and-deep-tiny": Preset(WideDeepConfig(2, 16, 40, 4, 5, 2, 3), 8),
        "wide-and-deep": Preset(WideDeepConfig(6, 1024, 2322444, 16, 26, 2, 13), 16384),
        "wide-and-deep-large": Preset(WideDeepConfig(6, 1024, 51200000, 16, 26, 2, 13), 16384),
    },
)
"""As in DLPerf's comparison of OneFlow and HugeCTR on Criteo's clicks, whose tables have 2.3 to 51.2 million rows."""
