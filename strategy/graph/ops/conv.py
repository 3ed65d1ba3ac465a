"""Convolution of images, as matrix products over columns of pixels (Chellapilla et al. 2006), and its gradients.

    conv2d      x[n, c, h, w], filters[o, c / groups, i, j] -> y[n, o, p, q]
    conv2d_dx   filters, dy                                 -> dx
    conv2d_dw   x, dy                                       -> dfilters

A bias is added by `add`. Input channels are summed over, so that splitting them gives P; with several groups, channels
in and out are split together where every group stays whole. A rank counts its groups by its channels.
"""

from __future__ import annotations

from collections.abc import Iterator

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    int_attr,
    linear_in,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import ScratchSizes, sized
from strategy.graph.ops.traits import Convolution, PrecisionClass
from strategy.graph.ops.window import Pair, inside, padded, pair, slabs, uncut_dims, window_counts
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import Shape, TensorSpec

_COLUMNS = 1 << 20
"""Images are taken together while their columns are at most so many elements: what a core's cache holds."""


def _expect_composes(x: TensorSpec, filters: TensorSpec, attrs: Attrs) -> TensorSpec:
    """The spec of y.

    Raises:
        InputError: image and filters do not compose.
    """
    groups = int_attr(attrs, "groups")
    fits = len(x.shape) == len(filters.shape) == 4 and x.dtype == filters.dtype and groups >= 1
    fits = fits and x.shape[1] == filters.shape[1] * groups and filters.shape[0] % groups == 0
    expected = f"x[n, c, h, w], filters[o, c / {groups}, i, j] of one dtype, o a multiple of {groups}"
    expect(fits, "conv2d shapes do not compose", got=shapes((x, filters)), expected=expected)
    counts = window_counts(x.shape, _kernel(filters.shape), pair(attrs, "stride"), pair(attrs, "padding"))
    return TensorSpec((x.shape[0], filters.shape[0], *counts), x.dtype)


def _kernel(filters: Shape) -> Pair:
    return filters[2], filters[3]


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_expect_composes(inputs[0], inputs[1], attrs),)


def _infer_dx(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    filters, dy = inputs
    x = TensorSpec((dy.shape[0], filters.shape[1] * int_attr(attrs, "groups"), *pair(attrs, "size")), dy.dtype)
    expect(_expect_composes(x, filters, attrs) == dy, "conv2d_dx gets another dy", got=shapes(inputs), expected="y's")
    return (x,)


def _infer_dw(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, dy = inputs
    filters = TensorSpec((dy.shape[1], x.shape[1] // int_attr(attrs, "groups"), *pair(attrs, "kernel")), x.dtype)
    expect(_expect_composes(x, filters, attrs) == dy, "conv2d_dw gets another dy", got=shapes(inputs), expected="y's")
    return (filters,)


def _splits(x: Shape, filters: Shape, y: Shape, attrs: Attrs, parts: int) -> list[tuple[str, str, str]]:
    """What may be split together: the dim of x, of the filters and of y, "-" where a tensor lacks what is split."""
    found = [("0", "-", "0")]
    if int_attr(attrs, "groups") == 1:
        found += [("-", "0", "1"), ("1", "1", "-")]
    else:
        groups = x[1] // filters[1]
        if groups % parts == 0 or (filters[1] == 1 and filters[0] == groups):
            found.append(("1", "0", "1"))
    spatial = uncut_dims(x, _kernel(filters), pair(attrs, "stride"), pair(attrs, "padding"), parts)
    return [*found, *((str(dim), "-", str(dim)) for dim in spatial)]


def _signature(reads: tuple[str, str], writes: str) -> AxisSignature:
    first, second = (B if dim == "-" else Split(int(dim)) for dim in reads)
    return AxisSignature((first, second), (P if writes == "-" else Split(int(writes)),))


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    splits = _splits(inputs[0].shape, inputs[1].shape, outputs[0].shape, attrs, parts)
    return [*(_signature((x, w), y) for x, w, y in splits), linear_in([0], 2), linear_in([1], 2)]


def _signatures_dx(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    splits = _splits(outputs[0].shape, inputs[0].shape, inputs[1].shape, attrs, parts)
    return [*(_signature((w, y), x) for x, w, y in splits), linear_in([0], 2), linear_in([1], 2)]


def _signatures_dw(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    splits = _splits(inputs[0].shape, outputs[0].shape, inputs[1].shape, attrs, parts)
    return [*(_signature((x, y), w) for x, w, y in splits), linear_in([0], 2), linear_in([1], 2)]


def _chunks(images: int, column_size: int) -> Iterator[slice]:
    """Runs of images whose columns are made together."""
    step = max(1, min(images, _COLUMNS // column_size))
    for begin in range(0, images, step):
        yield slice(begin, min(begin + step, images))


def _columns(call: Call, frame: Array, groups: int, kernel: Pair, stride: Pair, counts: Pair) -> Array:
    """[m, c, ., .] -> [g, (c / g) i j, m p q]: per pixel of a window, its value in every window."""
    m, c = frame.shape[:2]
    pixels = kernel[0] * kernel[1]
    columns = call.workspace.get("columns", (c, pixels, m, *counts), frame.dtype)
    for pixel, slab in slabs(frame, kernel, stride, counts):
        columns[:, pixel] = slab.transpose(1, 0, 2, 3)
    return columns.reshape(groups, c // groups * pixels, m * counts[0] * counts[1])


def _channel_first(call: Call, name: str, y: Array, groups: int) -> Array:
    """[m, o, p, q] -> [g, o / g, m p q], copied where m > 1."""
    m, o, p, q = y.shape
    if m == 1:
        return y.reshape(groups, o // groups, p * q)
    rows = call.workspace.get(name, (o, m, p, q), y.dtype)
    rows[...] = y.transpose(1, 0, 2, 3)
    return rows.reshape(groups, o // groups, m * p * q)


def _run(call: Call) -> None:
    xp, (x, filters), y = call.xp, call.inputs, call.outputs[0]
    (o, each), (n, c), (p, q) = filters.shape[:2], x.shape[:2], y.shape[2:]
    groups, kernel, stride = c // each, _kernel(filters.shape), pair(call.attrs, "stride")
    weight = filters.reshape(groups, o // groups, -1)
    frame = padded(call, "frame", x, pair(call.attrs, "padding"), 0.0)
    for images in _chunks(n, c * kernel[0] * kernel[1] * p * q):
        columns = _columns(call, frame[images], groups, kernel, stride, (p, q))
        m = images.stop - images.start
        if m == 1:
            xp.matmul(weight, columns, out=y[images].reshape(groups, -1, p * q))
            continue
        rows = call.workspace.get("rows", (groups, o // groups, m * p * q), y.dtype)
        xp.matmul(weight, columns, out=rows)
        y[images] = rows.reshape(o, m, p, q).transpose(1, 0, 2, 3)


def _run_dx(call: Call) -> None:
    """Columns of dx are the transposed filters times dy; every column is added where its pixel came from."""
    xp, (filters, dy), dx = call.xp, call.inputs, call.outputs[0]
    (o, each), (n, c), (p, q) = filters.shape[:2], dx.shape[:2], dy.shape[2:]
    groups, kernel = c // each, _kernel(filters.shape)
    stride, padding = pair(call.attrs, "stride"), pair(call.attrs, "padding")
    weight = filters.reshape(groups, o // groups, -1).transpose(0, 2, 1)
    framed = (n, c, dx.shape[2] + 2 * padding[0], dx.shape[3] + 2 * padding[1])
    frame = dx if padding == (0, 0) else call.workspace.get("frame", framed, dx.dtype)
    frame[...] = 0
    for images in _chunks(n, c * kernel[0] * kernel[1] * p * q):
        rows = _channel_first(call, "rows", dy[images], groups)
        columns = call.workspace.get("columns", (groups, weight.shape[1], rows.shape[2]), dx.dtype)
        xp.matmul(weight, rows, out=columns)
        by_pixel = columns.reshape(c, kernel[0] * kernel[1], -1, p, q)
        for pixel, slab in slabs(frame[images], kernel, stride, (p, q)):
            slab += by_pixel[:, pixel].transpose(1, 0, 2, 3)
    if frame is not dx:
        dx[...] = inside(frame, padding)


def _run_dw(call: Call) -> None:
    """dy times the transposed columns of x, added up over the images."""
    xp, (x, dy), dfilters = call.xp, call.inputs, call.outputs[0]
    (o, each), (n, c), (p, q) = dfilters.shape[:2], x.shape[:2], dy.shape[2:]
    groups, kernel, stride = c // each, _kernel(dfilters.shape), pair(call.attrs, "stride")
    total = dfilters.reshape(groups, o // groups, -1)
    frame = padded(call, "frame", x, pair(call.attrs, "padding"), 0.0)
    for images in _chunks(n, c * kernel[0] * kernel[1] * p * q):
        columns = _columns(call, frame[images], groups, kernel, stride, (p, q)).transpose(0, 2, 1)
        rows = _channel_first(call, "rows", dy[images], groups)
        if images.start == 0:
            xp.matmul(rows, columns, out=total)
        else:
            total += xp.matmul(rows, columns)


def _scratch(x: TensorSpec, y: TensorSpec, kernel: Pair, attrs: Attrs) -> ScratchSizes:
    """The images in a frame, if they are padded; columns and results of the images that are taken together."""
    (n, c, h, w), (_, o, p, q), (down, across) = x.shape, y.shape, pair(attrs, "padding")
    column_size = c * kernel[0] * kernel[1] * p * q
    m = max(1, min(n, _COLUMNS // column_size))
    frames = [(n, c, h + 2 * down, w + 2 * across)] if (down, across) != (0, 0) else []
    return ScratchSizes(sized(x.dtype.nbytes, *frames, (m, column_size), *([(o, m, p, q)] if m > 1 else [])))


def _scratch_run(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    return _scratch(inputs[0], outputs[0], _kernel(inputs[1].shape), attrs)


def _scratch_dx(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    return _scratch(outputs[0], inputs[1], _kernel(inputs[0].shape), attrs)


def _scratch_dw(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    return _scratch(inputs[0], inputs[1], _kernel(outputs[0].shape), attrs)


def _gradient(builder: GradientBuilder) -> None:
    (x, filters), dy, attrs = builder.op.inputs, builder.output_gradient(), builder.op.attrs
    image, weight = (spec.shape for spec in builder.specs((x, filters)))
    if builder.wants(0):
        builder.give(0, builder.emit("dx", "conv2d_dx", (filters, dy), {**attrs, "size": image[2:]}))
    if builder.wants(1):
        builder.give(1, builder.emit("dw", "conv2d_dw", (x, dy), {**attrs, "kernel": weight[2:]}))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * outputs[0].size * inputs[1].size // inputs[1].shape[0]


def _flop_dx(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[1].size * inputs[0].size // inputs[0].shape[0]


def _flop_dw(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[1].size * outputs[0].size // outputs[0].shape[0]


def _form(x: Shape, filters: Shape, stride: Pair, padding: Pair, groups: int) -> tuple[Shape, Shape, Shape, Attrs]:
    attrs: Attrs = {"stride": stride, "padding": padding, "groups": groups}
    y = _expect_composes(TensorSpec(x), TensorSpec(filters), attrs)
    return x, filters, y.shape, attrs


_FORMS = (
    _form((5, 4, 7, 6), (7, 4, 3, 3), (1, 1), (1, 1), 1),
    _form((4, 5, 6, 7), (4, 5, 3, 1), (2, 1), (0, 0), 1),
    _form((4, 5, 4, 5), (4, 5, 1, 1), (1, 1), (0, 0), 1),
    _form((4, 4, 8, 6), (5, 4, 2, 3), (2, 3), (0, 0), 1),
    _form((5, 8, 5, 5), (4, 2, 3, 3), (2, 2), (1, 1), 4),
    _form((4, 6, 5, 5), (6, 3, 3, 3), (1, 1), (1, 1), 2),
    _form((4, 5, 5, 5), (5, 1, 3, 3), (1, 1), (1, 1), 5),
)
_EXAMPLES = tuple(Example((TensorSpec(x), TensorSpec(w)), attrs=attrs) for x, w, _, attrs in _FORMS)
_EXAMPLES_DX = tuple(
    Example((TensorSpec(w), TensorSpec(y)), attrs={**attrs, "size": x[2:]}) for x, w, y, attrs in _FORMS
)
_EXAMPLES_DW = tuple(
    Example((TensorSpec(x), TensorSpec(y)), attrs={**attrs, "kernel": w[2:]}) for x, w, y, attrs in _FORMS
)

OPS = (
    OpDef(
        "conv2d",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        cost=Convolution(filters=1),
        precision=PrecisionClass.HALF,
        scratch=_scratch_run,
        examples=_EXAMPLES,
    ),
    OpDef(
        "conv2d_dx",
        _infer_dx,
        _flop_dx,
        _signatures_dx,
        _run_dx,
        cost=Convolution(filters=0),
        scratch=_scratch_dx,
        examples=_EXAMPLES_DX,
    ),
    OpDef(
        "conv2d_dw",
        _infer_dw,
        _flop_dw,
        _signatures_dw,
        _run_dw,
        cost=Convolution(filters=2),
        scratch=_scratch_dw,
        examples=_EXAMPLES_DW,
    ),
)
