"""The margin of ArcFace's softmax (Deng et al. 2019, arXiv:1801.07698); `strategy.nn.losses` composes it.

arc_margin     cosine[..., v], labels[...]              -> logits[..., v]

The classes may be split: the rank that holds a label's class moves that cell.
"""

from __future__ import annotations

import math

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
    linear_in,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.loss import as_rows, rows_of
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import DType, TensorSpec


def _infer_margin(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    cosine, labels = inputs[0], inputs[1]
    composes = len(cosine.shape) > 0 and cosine.shape[:-1] == labels.shape and not labels.dtype.is_float
    expect(composes, "arc_margin shapes do not compose", got=shapes(inputs), expected="cosine[..., v], labels[...]")
    alike = len(inputs) == 2 or inputs[2] == cosine
    expect(alike, "operands differ", got=shapes(inputs), expected="the gradient like the cosine")
    margin = float_attr(attrs, "margin")
    expect(0 <= margin < math.pi, "not an angle", got=margin, expected="radians, from 0 to less than pi")
    return (cosine,)


def _signatures_margin(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    rows = [AxisSignature((Split(d),) * 2, (Split(d),)) for d in rows_of(inputs)]
    classes = Split(len(rows))
    return [*rows, AxisSignature((classes, B), (classes,))]


def _own_cells(call: Call) -> tuple[Array, Array]:
    """Row and column of every label's cell on this rank."""
    begin, end = call.input_boxes[0][-1]
    flat = call.inputs[1].reshape(-1)
    rows = call.xp.nonzero((flat >= begin) & (flat < end))[0]
    return rows, flat[rows] - begin


def _run_margin(call: Call) -> None:
    """scale * cos(angle), and at the label scale * cos(angle + margin) (Deng et al. 2019, arXiv:1801.07698, eq. 3).

    Where angle + margin would pass pi, scale * (cos(angle) - margin sin(margin)), as the authors' code has it, so that
    the logit stays monotone in the angle.
    """
    xp, cosine, out = call.xp, call.inputs[0], call.outputs[0]
    margin, scale = float_attr(call.attrs, "margin"), float_attr(call.attrs, "scale")
    xp.multiply(cosine, scale, out=out)
    cells = _own_cells(call)
    cos = as_rows(cosine)[cells]
    sine = xp.sqrt(xp.maximum(1 - cos * cos, 0))
    moved = cos * math.cos(margin) - sine * math.sin(margin)
    beyond = cos - margin * math.sin(margin)
    as_rows(out)[cells] = scale * xp.where(cos > -math.cos(margin), moved, beyond)


def _gradient_margin(builder: GradientBuilder) -> None:
    if builder.wants(0):
        operands = (*builder.op.inputs, builder.output_gradient())
        builder.give(0, builder.emit("dcosine", "arc_margin_grad", operands, builder.op.attrs))


def _signatures_margin_grad(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    rows = [AxisSignature((Split(d),) * 3, (Split(d),)) for d in rows_of(inputs)]
    classes = Split(len(rows))
    return [*rows, AxisSignature((classes, B, classes), (classes,)), linear_in([2], 3)]


def _run_margin_grad(call: Call) -> None:
    """d cos(angle + margin) / d cos(angle) = cos(margin) + sin(margin) cos(angle) / sin(angle)."""
    xp, (cosine, _, grad), out = call.xp, call.inputs, call.outputs[0]
    margin, scale = float_attr(call.attrs, "margin"), float_attr(call.attrs, "scale")
    xp.multiply(grad, scale, out=out)
    cells = _own_cells(call)
    cos = as_rows(cosine)[cells]
    sine = xp.sqrt(xp.maximum(1 - cos * cos, xp.finfo(cos.dtype).eps))
    moved = math.cos(margin) + math.sin(margin) * cos / sine
    as_rows(out)[cells] *= xp.where(cos > -math.cos(margin), moved, 1)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size


_LOGITS, _LABELS = TensorSpec((7, 5)), TensorSpec((7,), DType.INT32)
_MARGIN = {"margin": 0.5, "scale": 16.0}
_COSINES = {0: (-0.95, 0.95), 1: (0.0, 5.0)}

OPS = (
    OpDef(
        "arc_margin",
        _infer_margin,
        _flop,
        _signatures_margin,
        _run_margin,
        _gradient_margin,
        precision=PrecisionClass.SINGLE,
        examples=(Example((_LOGITS, _LABELS), attrs=_MARGIN, ranges=_COSINES),),
    ),
    OpDef(
        "arc_margin_grad",
        _infer_margin,
        _flop,
        _signatures_margin_grad,
        _run_margin_grad,
        examples=(Example((_LOGITS, _LABELS, _LOGITS), attrs=_MARGIN, ranges=_COSINES),),
    ),
)
