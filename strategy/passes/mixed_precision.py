"""Mixed precision: casts put into a forward pass, so that its large products compute on 16-bit floats.

Parameters stay as they are, in float32; each is cast once per step, for all of its readers. What an op computes in
follows from its precision class (the lists of Micikevicius et al. 2018, arXiv:1710.03740, as OneFlow and PyTorch have
them):

    products           in half precision, accumulated in float32 (see `strategy.graph.ops.half_precision`)
    sums and powers    in float32: soft-max, losses, reductions, statistics over a batch
    others             as what they read is; where that differs, in half precision, unless it has data of the graph.
                       Parameters have no say, so that a bias, a gain or an embedding follows the activations.

Norms over a row are among the others, for they keep their statistics in float32 in any case.

It works on the forward pass alone, before differentiation: a cast has a gradient, so every backward op is in the
precision of its forward op, and gradients of parameters come back to float32 where they arise, before accumulation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import PrecisionClass
from strategy.passes.low_precision import Scaling
from strategy.sbp.tensor import DType


class Precision(StrEnum):
    """What a model computes in, between parameters of another dtype."""

    FULL = "full"
    """The dtype of the parameters."""
    BF16 = "bf16"
    FP16 = "fp16"
    FP8_DELAYED = "fp8-delayed"
    """As bf16, but that linear maps of layers multiply codes of 8 bits, whose scales are those of earlier steps."""
    FP8_CURRENT = "fp8-current"
    """The same, with scales of the tensors themselves."""
    FP8_BLOCK = "fp8-block"
    """The same, with a scale per 128 x 128 weights and per 128 of what else is multiplied."""
    MXFP8 = "mxfp8"
    """The same, with a scale per 32, a power of two."""
    NVFP4 = "nvfp4"
    """Codes of 4 bits, with a scale of 8 bits per 16, of weights per 16 x 16, and one per tensor."""

    @property
    def half(self) -> DType | None:
        """The dtype of the products, and of what codes are made of; None where nothing is cast."""
        if self is Precision.FULL:
            return None
        return DType.FLOAT16 if self is Precision.FP16 else DType.BFLOAT16

    @property
    def scaling(self) -> Scaling | None:
        """What the scales of linear maps on codes are of; None where there are no codes."""
        return _SCALINGS.get(self)


_SCALINGS = {
    Precision.FP8_DELAYED: Scaling.DELAYED,
    Precision.FP8_CURRENT: Scaling.CURRENT,
    Precision.FP8_BLOCK: Scaling.BLOCK,
    Precision.MXFP8: Scaling.MX,
    Precision.NVFP4: Scaling.NV,
}


def mixed_precision(graph: Graph, half: DType, whole: Collection[str] = ()) -> Graph:
    """A forward pass with casts to `half` and back; the values of `whole` are computed in float32."""
    builder = GraphBuilder({value.name: value for value in graph.values.values() if value.role is not Role.COMPUTED})
    casts = _Casts(builder, graph)
    for op in graph.ops:
        dtype = _dtype_of(builder, op, half, whole)
        inputs = op.inputs if dtype is None else [casts.of(name, dtype, op) for name in op.inputs]
        outputs = builder.add_op(op, inputs)
        casts.layer_of.update(dict.fromkeys(outputs, op.layer))
    return builder.build(loss=graph.loss)


@dataclass(slots=True)
class _Casts:
    """The casts so far. A value is narrowed where it is written, and widened where it is first read: little moves."""

    builder: GraphBuilder
    graph: Graph
    layer_of: dict[str, int | None] = field(default_factory=dict)
    known: dict[tuple[str, DType], str] = field(default_factory=dict)

    def of(self, name: str, dtype: DType, reader: Op) -> str:
        """The value in a dtype; the value itself if it is no float or already so."""
        spec = self.builder.spec(name)
        if not spec.dtype.is_float or spec.dtype is dtype:
            return name
        if (name, dtype) not in self.known:
            layer = self.layer_of.get(name, reader.layer) if dtype.is_half else reader.layer
            attrs = {"dtype": str(dtype)}
            line = self.graph.derived(name, dtype, layer)
            cast = self.builder.add(line, "cast", (name,), attrs=attrs, phase=reader.phase, layer=layer)
            self.known[name, dtype] = cast[0]
        return self.known[name, dtype]


def _dtype_of(builder: GraphBuilder, op: Op, half: DType, whole: Collection[str]) -> DType | None:
    """What an op computes in; None where it has no floats to cast, or says itself what it casts to."""
    read = [builder.values[name] for name in op.inputs if builder.spec(name).dtype.is_float]
    precision = op_definition(op.kind).precision
    if precision is PrecisionClass.CONVERTS or not read:
        return None
    if precision is PrecisionClass.SINGLE or op.updates or not set(whole).isdisjoint(op.outputs):
        return DType.FLOAT32
    if precision is PrecisionClass.HALF:
        return half
    if any(value.role is Role.INPUT for value in read):
        return DType.FLOAT32
    computed = [value.spec.dtype for value in read if value.role is Role.COMPUTED]
    return half if half in computed or not computed else DType.FLOAT32
