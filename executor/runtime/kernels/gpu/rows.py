"""Launches of ops over rows: softmax, what cross-entropy is composed of. A block per row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, element_of, per_row, rows_and_width, wide
from strategy.graph.ops.base import Array, Call, float_attr, int_attr

Launches = tuple[Launch, ...]


def softmax(call: Call) -> Launches:
    """See `strategy.graph.ops.softmax`."""
    return _by_rows(softmax, (*call.inputs, *call.outputs))


def log_softmax(call: Call) -> Launches:
    """See `strategy.graph.ops.softmax`."""
    return _by_rows(log_softmax, (*call.inputs, *call.outputs))


def softmax_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.softmax`."""
    return _by_rows(softmax_grad, (*call.inputs, *call.outputs))


def log_softmax_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.softmax`."""
    return _by_rows(log_softmax_grad, (*call.inputs, *call.outputs))


def _by_rows(make: Callable[[Call], Launches], arrays: tuple[Array, ...]) -> Launches:
    """The kernel of a function's own name, a block per row."""
    rows, width = rows_and_width(arrays[0].shape)
    arguments = (*arrays, np.int64(width), wide(arrays, width))
    return (Launch(make.__name__, element_of(arrays[0]), per_row(rows), arguments),)


def sum_exp(call: Call) -> Launches:
    """See `strategy.graph.ops.loss`."""
    (logits, top), (out,) = call.inputs, call.outputs
    rows, width = rows_and_width(logits.shape)
    arguments = (logits, top, out, np.int64(width), wide((logits,)))
    return (Launch(sum_exp.__name__, element_of(logits), per_row(rows), arguments),)


def sum_exp_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.loss`."""
    (logits, top, grad), (out,) = call.inputs, call.outputs
    rows, width = rows_and_width(logits.shape)
    arguments = (logits, top, grad, out, np.int64(width), wide((logits, out)))
    return (Launch(sum_exp_grad.__name__, element_of(logits), per_row(rows), arguments),)


def cross_entropy(call: Call) -> Launches:
    """Sums of rows first, where labels are smoothed. A label that is no class makes the loss no number."""
    (logits, labels, lse), (loss, count) = call.inputs, call.outputs
    rows, width = rows_and_width(logits.shape)
    element, sums, found = element_of(logits), None, []
    if float_attr(call.attrs, "label_smoothing"):
        sums = call.workspace.get("sums", (rows,), "float32")
        row_sums = (logits, sums, np.int64(width), wide((logits,)))
        found.append(Launch("row_sums", element, per_row(rows), row_sums))
    arguments = (logits, labels, np.int32(labels.dtype.itemsize), lse, sums, loss, count, np.int64(rows))
    return (*found, Launch(cross_entropy.__name__, element, (1, 1, 1), (*arguments, *_classes(call))))


def cross_entropy_grad(call: Call) -> Launches:
    """A label that is no class makes its row no numbers."""
    (logits, labels, lse, *grad), (out,) = call.inputs, call.outputs
    arguments = (logits, labels, np.int32(labels.dtype.itemsize), lse, *(grad or (None,)), out)
    arguments = (*arguments, *_classes(call), wide((logits, out)))
    return (Launch(cross_entropy_grad.__name__, element_of(logits), per_row(labels.size), arguments),)


def _classes(call: Call) -> tuple[np.generic, ...]:
    """Which classes are here, how many there are, the label that does not count, the smoothing."""
    begin, end = call.input_boxes[0][-1]
    figures = (begin, end - begin, int_attr(call.attrs, "classes"), int_attr(call.attrs, "ignore_index"))
    return (*map(np.int64, figures), np.float32(float_attr(call.attrs, "label_smoothing")))
