"""Low precision: the linear maps of layers multiply codes of 8 bits, with a scale per tensor.

    codes of x and w (E4M3)             -> scaled_matmul     -> y      forward
    codes of dy (E5M2), those of w      -> scaled_matmul_nt  -> dx     backward
    codes of dy, those of x             -> scaled_matmul_tn  -> dw     x itself need not be kept

Weights and activations have more digits, gradients more range (Micikevicius et al. 2022, arXiv:2209.05433). Scales:

    current    the amax of the tensor itself, reduced over the ranks that hold it, ahead of its cast
    delayed    the largest amax of the last steps; every cast sees the amax of its own tensor, those of a layer meet
               once per step, over micro-batches and ranks, and a history per layer keeps them: state like an
               optimiser's

As trainers have it, embeddings, heads, attention, norms and routers stay as they are: all products whose result is
widened at once; and so do experts with a capacity. All experts of a layer have one scale. It works on forward and
backward pass together, behind differentiation: what a gradient is of, rounding does not change (straight through).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from strategy.base.errors import InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Lineage, Op, Phase, Role, Value, lineage_of, of_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.tensor import DType, Rate, TensorSpec

_FIGURE = TensorSpec(())


class Scaling(StrEnum):
    """Where the scales of codes come from."""

    DELAYED = "delayed"
    CURRENT = "current"
    BLOCK = "block"
    """Of blocks, in this and the next two (see `block_scaling`)."""
    MX = "mx"
    NV = "nv"


def low_precision(graph: Graph, scaling: Scaling, history: int) -> Graph:
    """Forward and backward pass with linear maps on codes; delayed scales look back on `history` steps.

    Raises:
        InputError: no layer has a linear map.
    """
    products = frozenset(linear_products(graph))
    if not products:
        raise InputError("no linear map to multiply in 8 bits", where="training: precision", expected="layers")
    builder = GraphBuilder({value.name: value for value in graph.values.values() if value.role is not Role.COMPUTED})
    layers = _layers(graph, products)
    casts = _Casts(graph, builder, scaling, history, layers)
    for op in graph.ops:
        if op.name in products:
            casts.multiply(op)
        else:
            builder.add_op(op, op.inputs)
    for layer in layers.values():
        casts.record(layer)
    return builder.build(loss=graph.loss)


def linear_products(graph: Graph) -> Iterator[str]:
    """Products of linear maps in layers, and of their gradients."""
    maps = set()
    for op in graph.ops:
        if not op_definition(op.kind).coded or op.any_layer is None:
            continue
        if op.phase is Phase.FORWARD and graph.parameter_of(op.inputs[1]) and not _is_widened(graph, op):
            maps.add(op.name)
        if op.root in maps:
            yield op.name


def _is_widened(graph: Graph, op: Op) -> bool:
    """Whether what a product writes is wanted in float32, be it with a bias: logits of a router, say."""
    left = list(op.outputs)
    for name in left:
        for reader in graph.consumers[name]:
            if reader.phase is Phase.FORWARD and op_definition(reader.kind).precision is PrecisionClass.CONVERTS:
                return True
            if reader.phase is Phase.FORWARD and any(graph.parameter_of(one) for one in reader.inputs):
                left += reader.outputs if name == op.outputs[0] else ()
    return False


@dataclass(slots=True)
class _Layer:
    """The tensors of a layer that become codes, in the order in which they are read first; the reader of each."""

    readers: dict[str, Op] = field(default_factory=dict)
    amaxes: tuple[str, ...] = ()
    """The figures that scales follow from, one per tensor, where they are delayed."""
    seen: dict[str, str] = field(default_factory=dict)
    """Tensor -> its own amax."""
    history: str = ""

    @property
    def first(self) -> Op:
        """The product that is first of the layer."""
        return next(iter(self.readers.values()))


def _layers(graph: Graph, products: Collection[str]) -> dict[int | str | None, _Layer]:
    found: dict[int | str | None, _Layer] = {}
    for op in graph.ops:
        if op.name in products:
            readers = found.setdefault(op.any_layer, _Layer()).readers
            for name in op.inputs:
                readers.setdefault(name, op)
    return found


@dataclass(slots=True)
class _Casts:
    """The codes so far, by layer and tensor: a tensor is cast once for all of its readers in a layer."""

    graph: Graph
    builder: GraphBuilder
    scaling: Scaling
    history: int
    layers: dict[int | str | None, _Layer]
    known: dict[tuple[int | str | None, str], tuple[str, str]] = field(default_factory=dict)

    def multiply(self, op: Op) -> None:
        """A product, on codes."""
        codes, scales = zip(*(self._cast(op, name) for name in op.inputs), strict=True)
        attrs = {**op.attrs, "dtype": str(self.builder.spec(op.inputs[0]).dtype)}
        self.builder.add(
            lineage_of(op),
            op_definition(op.kind).coded,
            (*codes, *scales),
            outputs=op.outputs,
            attrs=attrs,
            phase=op.phase,
            layer=op.layer,
        )

    def record(self, layer: _Layer) -> None:
        """What a layer's own amaxes leave for later steps."""
        if self.scaling is Scaling.DELAYED:
            seen, number = tuple(layer.seen[name] for name in layer.readers), layer.first.layer
            line = of_op(layer.first, "seen", number)
            sums = self.builder.add(line, "accumulate_max", seen, phase=Phase.BACKWARD, layer=number)
            line, updates = of_op(layer.first, "record", number), (layer.history,)
            self.builder.add(line, "record_amax", sums, updates=updates, phase=Phase.UPDATE, layer=number)

    def _cast(self, op: Op, name: str) -> tuple[str, str]:
        """Codes and scale of a tensor."""
        key = op.any_layer, name
        if key not in self.known:
            producer = self.graph.producer.get(name)
            is_gradient = producer is not None and producer.phase is Phase.BACKWARD
            dtype = DType.FLOAT8_E5M2 if is_gradient else DType.FLOAT8_E4M3
            line = self._line(op, name, str(dtype))
            observes = self.scaling is Scaling.DELAYED
            made = self.builder.add(
                line,
                "quantize",
                (name, self._amax(op, name)),
                labels=("unit", "largest"),
                attrs={"dtype": str(dtype), "observes": int(observes)},
                phase=op.phase,
                layer=op.layer,
            )
            self.known[key] = made[0], made[1]
            if observes:
                self.layers[op.any_layer].seen[name] = made[2]
        return self.known[key]

    def _amax(self, op: Op, name: str) -> str:
        """The figure that the scale of a tensor follows from."""
        if self.scaling is Scaling.CURRENT:
            return self.builder.add(self._line(op, name, "largest"), "amax", (name,), phase=op.phase, layer=op.layer)[0]
        layer = self.layers[op.any_layer]
        if not layer.history:
            count = len(layer.readers)
            spec = TensorSpec((count, self.history), _FIGURE.dtype)
            layer.history = self.builder.declare(
                Value(f"{layer.first.name}:history", spec, Rate.STEP, Role.VARIABLE, "zeros")
            )
            labels = tuple(str(number) for number in range(1, count))
            line = of_op(layer.first, "amaxes", op.layer)
            layer.amaxes = self.builder.add(line, "history_amax", (layer.history,), labels=labels, layer=op.layer)
        return layer.amaxes[list(layer.readers).index(name)]

    def _line(self, op: Op, name: str, label: str) -> Lineage:
        """What is made of a tensor: of a parameter by its name, else by that of the product that reads it first."""
        if self.builder.values[name].rate is Rate.STEP:
            return self.graph.derived(name, label, op.layer)
        return of_op(op, f"x{op.inputs.index(name)}.{label}", op.layer)
