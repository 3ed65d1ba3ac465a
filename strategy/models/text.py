"""What models that predict the next token share: their batch."""

from __future__ import annotations

from collections.abc import Mapping

from strategy.models.base import Source, Tokens
from strategy.sbp.tensor import DType, TensorSpec


class TextBatches:
    """Base of the dimensions of a model of text; a sample is one context of `sequence` tokens."""

    __slots__ = ()

    sequence: int
    vocabulary: int

    @property
    def tokens_per_sample(self) -> int:
        """A sample is one context."""
        return self.sequence

    @property
    def batch(self) -> Mapping[str, Source]:
        """Tokens of a text, and as labels the token after each."""
        return {"ids": Tokens(self.vocabulary), "labels": Tokens(self.vocabulary, 1)}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """ids[b, s] and labels[b, s], and more of these where a model predicts further."""
        return dict.fromkeys(self.batch, TensorSpec((micro_batch, self.sequence), DType.INT32))
