"""Pooling of images: the largest or the mean pixel of every window; and its gradient.

    max_pool       x[n, c, h, w]  -> y[n, c, p, q]
    max_pool_grad  x, dy          -> dx
    avg_pool       x[n, c, h, w]  -> y[n, c, p, q]
    avg_pool_grad  dy             -> dx

Pixels of the frame count as zeros in a mean and never win. The gradient of a maximum goes to the first pixel of the
window that attains it. The mean of whole images is `reduce_mean`. Rows and columns are split where windows tile them.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, expect, linear_in, shapes
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import ScratchSizes, sized
from strategy.graph.ops.window import Pair, inside, padded, pair, slabs, uncut_dims, window_counts
from strategy.sbp.sbp import P, Partial, Reduce, Split
from strategy.sbp.tensor import Shape, TensorSpec


def _windows(attrs: Attrs) -> tuple[Pair, Pair, Pair]:
    return pair(attrs, "kernel"), pair(attrs, "stride"), pair(attrs, "padding")


def _pooled(x: TensorSpec, attrs: Attrs) -> TensorSpec:
    expect(len(x.shape) == 4 and x.dtype.is_float, "pooling needs images", got=x.shape, expected="x[n, c, h, w]")
    return TensorSpec((*x.shape[:2], *window_counts(x.shape, *_windows(attrs))), x.dtype)


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (_pooled(inputs[0], attrs),)


def _infer_max_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, dy = inputs
    expect(dy == _pooled(x, attrs), "max_pool_grad shapes do not compose", got=shapes(inputs), expected="x and y's dy")
    return (x,)


def _infer_avg_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (dy,) = inputs
    x = TensorSpec((*dy.shape[:2], *pair(attrs, "size")), dy.dtype)
    wanted = _pooled(x, attrs)
    expect(dy == wanted, "avg_pool_grad gets another dy", got=dy.shape, expected=str(wanted.shape))
    return (x,)


def _dims(x: Shape, attrs: Attrs, parts: int) -> list[int]:
    return [0, 1, *uncut_dims(x, *_windows(attrs), parts)]


def _signatures_max(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    largest = Partial(Reduce.MAX)
    alike = [AxisSignature((Split(d),), (Split(d),)) for d in _dims(inputs[0].shape, attrs, parts)]
    return [*alike, AxisSignature((largest,), (largest,))]


def _signatures_max_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    alike = [AxisSignature((Split(d),) * 2, (Split(d),)) for d in _dims(inputs[0].shape, attrs, parts)]
    return [*alike, linear_in([1], 2)]


def _signatures_avg(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*(AxisSignature((Split(d),), (Split(d),)) for d in _dims(inputs[0].shape, attrs, parts)), linear_in([0], 1)]


def _signatures_avg_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [
        *(AxisSignature((Split(d),), (Split(d),)) for d in _dims(outputs[0].shape, attrs, parts)),
        AxisSignature((P,), (P,)),
    ]


def _largest(call: Call, x: Array, y: Array) -> Array:
    """Writes the largest pixel of every window into y; gives the padded images."""
    xp = call.xp
    kernel, stride, padding = _windows(call.attrs)
    frame = padded(call, "frame", x, padding, -xp.inf)
    y[...] = -xp.inf
    for _, slab in slabs(frame, kernel, stride, y.shape[2:]):
        xp.maximum(y, slab, out=y)
    return frame


def _run_max(call: Call) -> None:
    _largest(call, call.inputs[0], call.outputs[0])


def _run_max_grad(call: Call) -> None:
    xp, (x, dy), dx = call.xp, call.inputs, call.outputs[0]
    kernel, stride, padding = _windows(call.attrs)
    y = call.workspace.get("y", dy.shape, x.dtype)
    frame = _largest(call, x, y)
    target = call.workspace.get("target", frame.shape, x.dtype)
    target[...] = 0
    waiting, winner = (call.workspace.get(name, y.shape, xp.dtype(bool)) for name in ("waiting", "winner"))
    waiting[...] = True
    share = call.workspace.get("share", dy.shape, dy.dtype)
    places = slabs(target, kernel, stride, y.shape[2:])
    for (_, slab), (_, place) in zip(slabs(frame, kernel, stride, y.shape[2:]), places, strict=True):
        xp.equal(slab, y, out=winner)
        winner &= waiting
        waiting ^= winner
        xp.multiply(dy, winner, out=share)
        place += share
    dx[...] = inside(target, padding)


def _run_avg(call: Call) -> None:
    x, y = call.inputs[0], call.outputs[0]
    kernel, stride, padding = _windows(call.attrs)
    y[...] = 0
    for _, slab in slabs(padded(call, "frame", x, padding, 0.0), kernel, stride, y.shape[2:]):
        y += slab
    y *= 1.0 / (kernel[0] * kernel[1])


def _run_avg_grad(call: Call) -> None:
    xp, dy, dx = call.xp, call.inputs[0], call.outputs[0]
    kernel, stride, padding = _windows(call.attrs)
    n, c, h, w = dx.shape
    frame = call.workspace.get("frame", (n, c, h + 2 * padding[0], w + 2 * padding[1]), dx.dtype)
    frame[...] = 0
    share = call.workspace.get("share", dy.shape, dy.dtype)
    xp.multiply(dy, 1.0 / (kernel[0] * kernel[1]), out=share)
    for _, slab in slabs(frame, kernel, stride, dy.shape[2:]):
        slab += share
    dx[...] = inside(frame, padding)


def _frame(x: Shape, attrs: Attrs) -> Shape:
    """Of the padded images."""
    _, _, (down, across) = _windows(attrs)
    return (*x[:2], x[2] + 2 * down, x[3] + 2 * across)


def _scratch(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    x = inputs[0]
    return ScratchSizes(sized(x.dtype.nbytes, *([_frame(x.shape, attrs)] if any(pair(attrs, "padding")) else [])))


def _scratch_max_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """The images and their gradients in frames; by window the maximum, a share, and which pixel has it."""
    x, dy = inputs
    frame = _frame(x.shape, attrs)
    return ScratchSizes((*sized(x.dtype.nbytes, frame, frame, dy.shape, dy.shape), *sized(1, dy.shape, dy.shape)))


def _scratch_avg_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    dy = inputs[0]
    return ScratchSizes(sized(dy.dtype.nbytes, _frame(outputs[0].shape, attrs), dy.shape))


def _gradient_max(builder: GradientBuilder) -> None:
    inputs = (builder.op.inputs[0], builder.output_gradient())
    builder.give(0, builder.emit("dx", "max_pool_grad", inputs, builder.op.attrs))


def _gradient_avg(builder: GradientBuilder) -> None:
    (x,) = builder.specs(builder.op.inputs)
    attrs = {**builder.op.attrs, "size": x.shape[2:]}
    builder.give(0, builder.emit("dx", "avg_pool_grad", (builder.output_gradient(),), attrs))


def _pixels(attrs: Attrs) -> int:
    down, across = pair(attrs, "kernel")
    return down * across


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size * _pixels(attrs)


def _flop_max_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 3 * inputs[1].size * _pixels(attrs)


def _flop_avg_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size * _pixels(attrs)


_FORMS: tuple[tuple[Shape, Attrs], ...] = (
    ((5, 4, 7, 7), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    ((4, 5, 8, 6), {"kernel": (2, 3), "stride": (2, 3), "padding": (0, 0)}),
    ((4, 7, 5, 6), {"kernel": (3, 1), "stride": (1, 1), "padding": (0, 0)}),
)
_EXAMPLES = tuple(Example((TensorSpec(x),), attrs=attrs) for x, attrs in _FORMS)
_EXAMPLES_MAX_GRAD = tuple(Example((TensorSpec(x), _pooled(TensorSpec(x), attrs)), attrs=attrs) for x, attrs in _FORMS)
_EXAMPLES_AVG_GRAD = tuple(
    Example((_pooled(TensorSpec(x), attrs),), attrs={**attrs, "size": x[2:]}) for x, attrs in _FORMS
)

OPS = (
    OpDef("max_pool", _infer, _flop, _signatures_max, _run_max, _gradient_max, scratch=_scratch, examples=_EXAMPLES),
    OpDef(
        "max_pool_grad",
        _infer_max_grad,
        _flop_max_grad,
        _signatures_max_grad,
        _run_max_grad,
        scratch=_scratch_max_grad,
        examples=_EXAMPLES_MAX_GRAD,
    ),
    OpDef("avg_pool", _infer, _flop, _signatures_avg, _run_avg, _gradient_avg, scratch=_scratch, examples=_EXAMPLES),
    OpDef(
        "avg_pool_grad",
        _infer_avg_grad,
        _flop_avg_grad,
        _signatures_avg_grad,
        _run_avg_grad,
        scratch=_scratch_avg_grad,
        examples=_EXAMPLES_AVG_GRAD,
    ),
)
