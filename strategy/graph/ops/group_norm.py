"""Group norm (Wu and He 2018, arXiv:1803.08494, equation 6) and its gradient.

    group_norm       x[n, c, ...], gain[c], bias[c]  -> y, mean[n, g], rstd[n, g]
    group_norm_grad  x, gain, mean, rstd, dy         -> dx, dgain, dbias

Statistics are those of the c / g channels of a group, over all positions. Channels may be split where every group
stays whole; a rank counts its groups by its piece of the statistics.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Array, AxisSignature, Call, Example, OpDef, Specs, expect, int_attr, shapes
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.norm import epsilon_of
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import Shape, TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, gain, bias = inputs
    groups = int_attr(attrs, "groups")
    fits = len(x.shape) >= 2 and gain == bias == TensorSpec(x.shape[1:2], x.dtype)
    fits = fits and groups >= 1 and x.shape[1] % groups == 0
    expected = f"x[n, c, ...], gain[c], bias[c] of one dtype, c a multiple of {groups}"
    expect(fits, "group_norm shapes do not compose", got=shapes(inputs), expected=expected)
    stat = TensorSpec((x.shape[0], groups), x.dtype)
    return (x, stat, stat)


def _groups_stay_whole(x: Shape, groups: int, parts: int) -> bool:
    """Whether a split of the channels into `parts` cuts no group: groups divide, or each is one channel."""
    return groups % parts == 0 or groups == x[1]


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    batch, channel, first = Split(0), Split(1), Split(0)
    found = [AxisSignature((batch, B, B), (batch,) * 3), AxisSignature((B, P, P), (P, B, B))]
    if _groups_stay_whole(inputs[0].shape, outputs[1].shape[1], parts):
        found.append(AxisSignature((channel, first, first), (channel,) * 3))
    return found


def _grouped(array: Array, groups: int) -> Array:
    """[n, c, ...] -> view [n, g, elements of a group]."""
    return array.reshape(array.shape[0], groups, -1)


def _per_channel(vector: Array, rank: int) -> Array:
    """[c] -> [c, 1, ...], which broadcasts against [n, c, ...]."""
    return vector.reshape(-1, *(1,) * (rank - 2))


def _run(call: Call) -> None:
    xp, (x, gain, bias), (y, mean, rstd) = call.xp, call.inputs, call.outputs
    groups = mean.shape[1]
    xp.mean(_grouped(x, groups), axis=-1, out=mean)
    centred = _grouped(y, groups)
    xp.subtract(_grouped(x, groups), mean[..., None], out=centred)
    rstd[...] = xp.einsum("ngm,ngm->ng", centred, centred)
    rstd *= 1.0 / centred.shape[-1]
    rstd += epsilon_of(call.attrs)
    xp.sqrt(rstd, out=rstd)
    xp.divide(1.0, rstd, out=rstd)
    centred *= rstd[..., None]
    y *= _per_channel(gain, y.ndim)
    y += _per_channel(bias, y.ndim)


def _gradient(builder: GradientBuilder) -> None:
    (x, gain, _), (_, mean, rstd) = builder.op.inputs, builder.op.outputs
    inputs = (x, gain, mean, rstd, builder.output_gradient())
    labels = ("dx", "dgain", "dbias")
    for position, grad in enumerate(builder.emit_many("grad", "group_norm_grad", inputs, labels=labels)):
        builder.give(position, grad)


def _infer_grad(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0], inputs[1], inputs[1])


def _signatures_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    batch, channel, first = Split(0), Split(1), Split(0)
    found = [
        AxisSignature((batch, B, batch, batch, batch), (batch, P, P)),
        AxisSignature((B, B, B, B, P), (P, P, P)),
        AxisSignature((B, P, B, B, B), (P, B, B)),
    ]
    if _groups_stay_whole(inputs[0].shape, inputs[2].shape[1], parts):
        found.append(AxisSignature((channel, first, channel, channel, channel), (channel, first, first)))
    return found


def _run_grad(call: Call) -> None:
    """With h = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - h mean(g h)), means over a group."""
    xp, (x, gain, mean, rstd, dy), (dx, dgain, dbias) = call.xp, call.inputs, call.outputs
    groups = mean.shape[1]
    h = call.workspace.get("h", x.shape, x.dtype)
    centred, rows, by_channel = _grouped(h, groups), _grouped(dx, groups), (x.shape[0], x.shape[1], -1)
    xp.subtract(_grouped(x, groups), mean[..., None], out=centred)
    centred *= rstd[..., None]
    dgain[...] = xp.einsum("ncm,ncm->c", dy.reshape(by_channel), h.reshape(by_channel))
    dbias[...] = dy.reshape(by_channel).sum(axis=(0, 2))
    xp.multiply(dy, _per_channel(gain, x.ndim), out=dx)
    gh = xp.einsum("ngm,ngm->ng", rows, centred)
    g = xp.mean(rows, axis=-1)
    centred *= (gh / rows.shape[-1])[..., None]
    rows -= centred
    rows -= g[..., None]
    rows *= rstd[..., None]


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 8 * inputs[0].size


def _flop_grad(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 14 * inputs[0].size


_FORMS = (((5, 8, 3), 4), ((4, 6, 2, 2), 2), ((4, 7, 3), 7), ((5, 10, 2), 5), ((4, 6), 2))


def _examples(forms: str, *, with_groups: bool) -> tuple[Example, ...]:
    """Operands by form: "x" like the input, "c" like the gain, "s" like a statistic."""
    return tuple(
        Example(
            tuple(TensorSpec({"x": shape, "c": shape[1:2], "s": (shape[0], groups)}[form]) for form in forms),
            attrs={"groups": groups} if with_groups else {},
        )
        for shape, groups in _FORMS
    )


OPS = (
    OpDef(
        "group_norm",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        precision=PrecisionClass.SINGLE,
        examples=_examples("xcc", with_groups=True),
    ),
    OpDef(
        "group_norm_grad",
        _infer_grad,
        _flop_grad,
        _signatures_grad,
        _run_grad,
        scratch=scratch_like(0),
        examples=_examples("xcssx", with_groups=False),
    ),
)
