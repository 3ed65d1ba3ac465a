"""Launches of ops over rows: norms, softmax, what cross-entropy is composed of. A block per row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, blocks_for, element_of, per_row, rows_and_width, wide
from strategy.graph.ops.base import Array, Call, float_attr, int_attr
from strategy.graph.ops.norm import epsilon_of

Launches = tuple[Launch, ...]

_MOST_CHUNKS = 64
_LEAST_CHUNK = 16
"""Rows whose terms of a column one thread adds up: fixed, so that a sum has one order on every device."""


def layer_norm(call: Call) -> Launches:
    """See `strategy.graph.ops.norm`."""
    (x, gain, bias), (y, mean, rstd) = call.inputs, call.outputs
    rows, width = rows_and_width(x.shape)
    epsilon = np.float32(epsilon_of(call.attrs))
    arguments = (x, gain, bias, y, mean, rstd, np.int64(width), epsilon, wide((x, gain, bias, y), width))
    return (Launch(layer_norm.__name__, element_of(x), per_row(rows), arguments),)


def layer_norm_grad(call: Call) -> Launches:
    """dx by rows; dgain and dbias by columns, in two steps."""
    (x, gain, mean, rstd, dy), (dx, dgain, dbias) = call.inputs, call.outputs
    rows, width = rows_and_width(x.shape)
    arguments = (x, gain, mean, rstd, dy, dx, np.int64(width), wide((x, gain, dy, dx), width))
    by_rows = Launch("layer_norm_dx", element_of(x), per_row(rows), arguments)
    return (by_rows, *_columns(call, x, mean, rstd, dy, (dgain, dbias)))


def rms_norm(call: Call) -> Launches:
    """See `strategy.graph.ops.norm`."""
    (x, gain), (y, rstd) = call.inputs, call.outputs
    rows, width = rows_and_width(x.shape)
    arguments = (x, gain, y, rstd, np.int64(width), np.float32(epsilon_of(call.attrs)), wide((x, gain, y), width))
    return (Launch(rms_norm.__name__, element_of(x), per_row(rows), arguments),)


def rms_norm_grad(call: Call) -> Launches:
    """dx by rows; dgain by columns, in two steps."""
    (x, gain, rstd, dy), (dx, dgain) = call.inputs, call.outputs
    rows, width = rows_and_width(x.shape)
    arguments = (x, gain, rstd, dy, dx, np.int64(width), wide((x, gain, dy, dx), width))
    by_rows = Launch("rms_norm_dx", element_of(x), per_row(rows), arguments)
    return (by_rows, *_columns(call, x, None, rstd, dy, (dgain,)))


def _columns(call: Call, x: Array, mean: Array | None, rstd: Array, dy: Array, sums: tuple[Array, ...]) -> Launches:
    rows, width = rows_and_width(x.shape)
    chunk = max(blocks_for(rows, _MOST_CHUNKS), min(rows, _LEAST_CHUNK))
    chunks, element = blocks_for(rows, chunk), element_of(x)
    terms = call.workspace.get("terms", (len(sums), chunks, width), "float32")
    arguments = (x, mean, rstd, dy, terms, np.int64(rows), np.int64(width), np.int64(chunk))
    found = [Launch("norm_columns", element, (blocks_for(width), chunks, 1), arguments)]
    found += [total(part, out, chunks) for part, out in zip(terms, sums, strict=True)]
    return tuple(found)


def total(terms: Array, out: Array, count: int) -> Launch:
    """The sum of terms[count, width] over their first dim, in order."""
    arguments = (terms, out, np.int64(count), np.int64(out.size))
    return Launch("sum_terms", element_of(out), (blocks_for(out.size), 1, 1), arguments)


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
    arguments = (logits, top, out, np.int64(width), wide((logits,), width))
    return (Launch(sum_exp.__name__, element_of(logits), per_row(rows), arguments),)


def sum_exp_grad(call: Call) -> Launches:
    """See `strategy.graph.ops.loss`."""
    (logits, top, grad), (out,) = call.inputs, call.outputs
    rows, width = rows_and_width(logits.shape)
    arguments = (logits, top, grad, out, np.int64(width), wide((logits, out), width))
    return (Launch(sum_exp_grad.__name__, element_of(logits), per_row(rows), arguments),)


def cross_entropy(call: Call) -> Launches:
    """Sums of rows first, where labels are smoothed. A label that is no class makes the loss no number."""
    (logits, labels, lse), (loss, count) = call.inputs, call.outputs
    rows, width = rows_and_width(logits.shape)
    element, sums, found = element_of(logits), None, []
    if float_attr(call.attrs, "label_smoothing"):
        sums = call.workspace.get("sums", (rows,), "float32")
        row_sums = (logits, sums, np.int64(width), wide((logits,), width))
        found.append(Launch("row_sums", element, per_row(rows), row_sums))
    arguments = (logits, labels, np.int32(labels.dtype.itemsize), lse, sums, loss, count, np.int64(rows))
    return (*found, Launch(cross_entropy.__name__, element, (1, 1, 1), (*arguments, *_classes(call))))


def cross_entropy_grad(call: Call) -> Launches:
    """A label that is no class makes its row no numbers."""
    (logits, labels, lse, *grad), (out,) = call.inputs, call.outputs
    rows, width = rows_and_width(logits.shape)
    arguments = (logits, labels, np.int32(labels.dtype.itemsize), lse, *(grad or (None,)), out)
    arguments = (*arguments, *_classes(call), wide((logits, out), width))
    return (Launch(cross_entropy_grad.__name__, element_of(logits), per_row(rows), arguments),)


def _classes(call: Call) -> tuple[np.generic, ...]:
    """Which classes are here, how many there are, the label that does not count, the smoothing."""
    begin, end = call.input_boxes[0][-1]
    figures = (begin, end - begin, int_attr(call.attrs, "classes"), int_attr(call.attrs, "ignore_index"))
    return (*map(np.int64, figures), np.float32(float_attr(call.attrs, "label_smoothing")))


def square_sum(call: Call) -> Launches:
    """The squares that every block adds up, and their sum."""
    (x,), (out,) = call.inputs, call.outputs
    blocks = min(blocks_for(x.size, _SQUARES_PER_BLOCK), _MOST_CHUNKS * 4)
    terms = call.workspace.get("terms", (blocks, 1), "float32")
    arguments = (x, terms, np.int64(x.size), wide((x,)))
    of_blocks = Launch(square_sum.__name__, element_of(x), (blocks, 1, 1), arguments)
    return (of_blocks, total(terms, out, blocks))


_SQUARES_PER_BLOCK = 4096
