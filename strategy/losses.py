"""Losses as sums, with what they are to be divided by: the mean is formed once per step, over all micro-batches."""

from __future__ import annotations

from strategy.module import Tensor


def cross_entropy(logits: Tensor, labels: Tensor, *, label: str = "loss") -> tuple[Tensor, Tensor]:
    """Softmax cross-entropy over the last dim: the summed losses of logits [..., classes], and the number of rows."""
    loss, count, _ = logits.tracer.apply(label, "cross_entropy", (logits, labels), labels=("count", "lse"))
    return loss, count
