"""The steps of batch norm (Ioffe and Szegedy 2015, arXiv:1502.03167) that depend on its statistics.

    square_deviations  x[n, c, ...], mean[c]                    -> total[c], count[]
    batch_norm         x, mean[c], variance[c], gain[c], bias[c] -> y
    batch_norm_sums    x, mean, variance, dy                    -> dgain, dbias
    batch_norm_grad    x, mean, variance, gain, dgain, dbias, dy -> dx
    second_moment      variance[c], mean[c], about[c]           -> variance + (mean - about)^2
    running_average    means[c], moments[c], count[]; updates mean[c], variance[c]

The statistics are sums over the batch, P(sum) where the batch is split, and B where they are used: so every rank
normalises by the statistics of the whole batch, and any layout gives the same. `strategy.nn.layers` composes them.

`batch_norm` says by `count` of how many elements per channel its statistics are, and its gradient is then that of
the composition, with mean and variance as functions of x; a `count` of 0 says that they are given, as in evaluation.
Neither gives a gradient to the statistics themselves.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    float_attr,
    int_attr,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.norm import epsilon_of
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import B, P, Sbp, Split
from strategy.sbp.tensor import Shape, TensorSpec

_FIRST = Split(0)


def _expect_channels(kind: str, forms: str, inputs: Specs) -> None:
    """Refuse operands unless those of form "x" are alike and those of form "c" have one element per channel."""
    x = inputs[0]
    fits = len(x.shape) >= 2 and x.dtype.is_float and len(inputs) == len(forms)
    wanted = [x if form == "x" else TensorSpec(x.shape[1:2], x.dtype) for form in forms]
    fits = fits and list(inputs) == wanted
    expected = ", ".join("[n, c, ...]" if form == "x" else "[c]" for form in forms) + " of one dtype"
    expect(fits, f"{kind} shapes do not compose", got=shapes(inputs), expected=expected)


def _along(dim: int, forms: str) -> tuple[Sbp, ...]:
    """Layouts of operands where dim `dim` of x is split: what has one element per channel follows the channels."""
    return tuple(Split(dim) if form == "x" else _FIRST if dim == 1 else B for form in forms)


def _summed(dim: int) -> Sbp:
    """Layout of a sum per channel over everything else, where dim `dim` of x is split."""
    return _FIRST if dim == 1 else P


def _per_channel(vector: Array, rank: int) -> Array:
    """[c] -> [c, 1, ...], which broadcasts against [n, c, ...]."""
    return vector.reshape(-1, *(1,) * (rank - 2))


def _rstd(call: Call, variance: Array) -> Array:
    return 1.0 / call.xp.sqrt(variance + epsilon_of(call.attrs))


def _infer_deviations(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _expect_channels("square_deviations", "xc", inputs)
    return (inputs[1], TensorSpec((), inputs[0].dtype))


def _signatures_deviations(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    dims = range(len(inputs[0].shape))
    return [AxisSignature(_along(dim, "xc"), (_summed(dim), B if dim == 1 else P)) for dim in dims]


def _run_deviations(call: Call) -> None:
    xp, (x, mean), (total, count) = call.xp, call.inputs, call.outputs
    centred = call.workspace.get("centred", x.shape, x.dtype)
    xp.subtract(x, _per_channel(mean, x.ndim), out=centred)
    rows = centred.reshape(x.shape[0], x.shape[1], -1)
    total[...] = xp.einsum("ncm,ncm->c", rows, rows)
    count[...] = x.size // x.shape[1]


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _expect_channels("batch_norm", "xcccc", inputs)
    x, count = inputs[0], int_attr(attrs, "count")
    expect(count in (0, x.size // x.shape[1]), "batch_norm counts wrongly", got=count, expected="elements per channel")
    return (x,)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    dims = range(len(inputs[0].shape))
    linear: list[tuple[Sbp, ...]] = [(B, B, B, P, P), (P, P, B, B, P)]
    return [
        *(AxisSignature(_along(dim, "xcccc"), (Split(dim),)) for dim in dims),
        *(AxisSignature(terms, (P,)) for terms in linear),
    ]


def _run(call: Call) -> None:
    xp, (x, mean, variance, gain, bias), y = call.xp, call.inputs, call.outputs[0]
    xp.subtract(x, _per_channel(mean, x.ndim), out=y)
    y *= _per_channel(_rstd(call, variance) * gain, x.ndim)
    y += _per_channel(bias, x.ndim)


def _gradient(builder: GradientBuilder) -> None:
    x, mean, variance, gain, _ = builder.op.inputs
    dy, attrs = builder.output_gradient(), builder.op.attrs
    epsilon = {"epsilon": epsilon_of(attrs)}
    sums = builder.emit_many("sums", "batch_norm_sums", (x, mean, variance, dy), epsilon, labels=("dgain", "dbias"))
    if builder.wants(0):
        builder.give(0, builder.emit("dx", "batch_norm_grad", (x, mean, variance, gain, *sums, dy), attrs))
    for position, total in zip((3, 4), sums, strict=True):
        builder.give(position, total)


def _infer_sums(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _expect_channels("batch_norm_sums", "xccx", inputs)
    return (inputs[1], inputs[1])


def _signatures_sums(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    dims = range(len(inputs[0].shape))
    return [
        *(AxisSignature(_along(dim, "xccx"), (_summed(dim),) * 2) for dim in dims),
        AxisSignature((B, B, B, P), (P, P)),
        AxisSignature((P, P, B, B), (P, B)),
    ]


def _run_sums(call: Call) -> None:
    """dgain = sum of dy (x - mean) rstd, dbias = sum of dy."""
    xp, (x, mean, variance, dy), (dgain, dbias) = call.xp, call.inputs, call.outputs
    centred = call.workspace.get("centred", x.shape, x.dtype)
    xp.subtract(x, _per_channel(mean, x.ndim), out=centred)
    rows = (x.shape[0], x.shape[1], -1)
    dgain[...] = xp.einsum("ncm,ncm->c", dy.reshape(rows), centred.reshape(rows))
    dgain *= _rstd(call, variance)
    dbias[...] = dy.reshape(rows).sum(axis=(0, 2))


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _expect_channels("batch_norm_grad", "xcccccx", inputs)
    return (inputs[0],)


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    dims = range(len(inputs[0].shape))
    linear: list[tuple[Sbp, ...]] = [(B, B, B, B, P, P, P), (B, B, B, P, B, B, B)]
    return [
        *(AxisSignature(_along(dim, "xcccccx"), (Split(dim),)) for dim in dims),
        *(AxisSignature(terms, (P,)) for terms in linear),
    ]


def _run_grad(call: Call) -> None:
    """dx = rstd gain (dy - (dbias + h dgain) / count), h = (x - mean) rstd; given statistics have no second term."""
    xp, (x, mean, variance, gain, dgain, dbias, dy), dx = call.xp, call.inputs, call.outputs[0]
    rstd, count = _rstd(call, variance), int_attr(call.attrs, "count")
    scale = rstd * gain
    if count == 0:
        xp.multiply(dy, _per_channel(scale, x.ndim), out=dx)
        return
    slope = scale * rstd * dgain * (-1.0 / count)
    shift = scale * dbias * (-1.0 / count) - slope * mean
    scaled = call.workspace.get("scaled", x.shape, x.dtype)
    xp.multiply(dy, _per_channel(scale, x.ndim), out=scaled)
    xp.multiply(x, _per_channel(slope, x.ndim), out=dx)
    dx += _per_channel(shift, x.ndim)
    dx += scaled


def _infer_moment(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    alike = len(inputs) == 3 and len(inputs[0].shape) == 1 and all(spec == inputs[0] for spec in inputs)
    expect(alike, "second_moment shapes do not compose", got=shapes(inputs), expected="[c], [c], [c] of one dtype")
    return (inputs[0],)


def _signatures_moment(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((_FIRST,) * 3, (_FIRST,))]


def _run_moment(call: Call) -> None:
    (variance, mean, about), moment = call.inputs, call.outputs[0]
    call.xp.subtract(mean, about, out=moment)
    moment *= moment
    moment += variance


def _infer_average(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    means, moments, count = inputs
    fits = [means, *updates] == [moments] * 3 and len(means.shape) == 1 and count == TensorSpec((), means.dtype)
    expect(fits, "running_average shapes do not compose", got=shapes((*inputs, *updates)), expected="[c], [c], []")
    momentum = float_attr(attrs, "momentum")
    expect(0 <= momentum <= 1, "not a momentum", got=momentum, expected="a figure in [0, 1]")
    expect(int_attr(attrs, "count") > 0, "not a count", got=int_attr(attrs, "count"), expected="elements per channel")
    return ()


def _signatures_average(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((_FIRST, _FIRST, B), (), (_FIRST, _FIRST))]


def _run_average(call: Call) -> None:
    """Statistics of all micro-batches together: their means spread, and that is part of the variance.

    With the mean r before the step, m micro-batches of n elements, mean_i and variance_i, and N = m n:
    mean = sum mean_i / m, variance = N / (N - 1) (sum (variance_i + (mean_i - r)^2) / m - (mean - r)^2).
    """
    (means, moments, total), (average, variance) = call.inputs, call.updates
    momentum, pieces = float_attr(call.attrs, "momentum"), total / int_attr(call.attrs, "count")
    moved = means / pieces - average
    unbiased = total / call.xp.maximum(total - 1.0, 1.0)
    variance *= 1.0 - momentum
    variance += (momentum * unbiased) * (moments / pieces - moved * moved)
    average += momentum * moved


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 3 * inputs[0].size


def _flop_sums(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4 * inputs[0].size


def _flop_average(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 10 * inputs[0].size


_SHAPES = ((5, 4, 7), (4, 5, 4, 4), (5, 7))
_POSITIVE = (0.5, 3.0)


def _examples(forms: str, attrs: Attrs, *, counted: bool = False) -> tuple[Example, ...]:
    """Operands by form: "x" like the input, "c" one per channel, "v" a variance."""
    ranges = {position: _POSITIVE for position, form in enumerate(forms) if form == "v"}
    return tuple(
        Example(
            tuple(TensorSpec(shape if form == "x" else shape[1:2]) for form in forms),
            attrs={**attrs, "count": _count(shape)} if counted else attrs,
            ranges=ranges,
        )
        for shape in _SHAPES
    )


def _count(shape: Shape) -> int:
    return TensorSpec(shape).size // shape[1]


_EPSILON: Attrs = {"epsilon": 1e-5}
_AVERAGES = tuple(
    Example(
        (TensorSpec((size,)), TensorSpec((size,)), TensorSpec(())),
        (TensorSpec((size,)), TensorSpec((size,))),
        {"momentum": 0.1, "count": 2},
        {1: _POSITIVE, 2: (4.0, 8.0), 4: _POSITIVE},
    )
    for size in (5, 8)
)
_MOMENT = Example((TensorSpec((7,)),) * 3, ranges={0: _POSITIVE})

OPS = (
    OpDef(
        "square_deviations",
        _infer_deviations,
        _flop,
        _signatures_deviations,
        _run_deviations,
        precision=PrecisionClass.SINGLE,
        scratch=scratch_like(0),
        examples=_examples("xc", {}),
    ),
    OpDef(
        "batch_norm",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        precision=PrecisionClass.SINGLE,
        examples=_examples("xcvcc", {**_EPSILON, "count": 0}),
    ),
    OpDef(
        "batch_norm_sums",
        _infer_sums,
        _flop_sums,
        _signatures_sums,
        _run_sums,
        precision=PrecisionClass.SINGLE,
        scratch=scratch_like(0),
        examples=_examples("xcvx", _EPSILON),
    ),
    OpDef(
        "batch_norm_grad",
        _infer_grad,
        _flop_sums,
        _signatures_grad,
        _run_grad,
        scratch=scratch_like(0),
        examples=_examples("xcvcccx", _EPSILON, counted=True),
    ),
    OpDef("second_moment", _infer_moment, _flop, _signatures_moment, _run_moment, examples=(_MOMENT,)),
    OpDef(
        "running_average",
        _infer_average,
        _flop_average,
        _signatures_average,
        _run_average,
        precision=PrecisionClass.SINGLE,
        examples=_AVERAGES,
    ),
)
