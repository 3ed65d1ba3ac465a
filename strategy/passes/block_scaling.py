"""Block scaling: the linear maps of layers multiply codes with a scale per block, forward and backward.

    codes of x, w along k                 -> block_scaled_matmul     -> y      forward
    codes of dy, w along n                -> block_scaled_matmul_nt  -> dx     backward
    codes of x, dy along positions        -> block_scaled_matmul_tn  -> dw     backward

A scale must be one for all that is added up under it, so blocks lie along the dim that a product sums over, and a
tensor is cast once for every direction in which products read it: x ahead of the forward pass's product, so that x
itself need not be kept. Blocks of positions lie inside of a sample. Where the blocks of weights are square, one cast
serves both directions. The recipes:

    block   E4M3, float32 scales, 1 x 128 and 128 x 128 of weights (DeepSeek-V3, arXiv:2412.19437, section 3.3.2)
    mx      E4M3, scales of E8M0, 32 (MXFP8; Rouhani et al. 2023, arXiv:2310.10537)
    nv      E2M1, scales of E4M3 and one of the tensor, 16, and 16 x 16 of weights (NVFP4; NVIDIA 2025,
            arXiv:2509.25149, without its random Hadamard transform and stochastic rounding)

The hardware that multiplies mx and nv knows whole blocks alone; with the others the last one may be shorter. Which maps
are meant is what `low_precision` says; but gradients of the weights of dropless experts stay in halves, for which rows
would share a block depends on who holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from strategy.base.errors import InputError, report
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Lineage, Op, Role, lineage_of, of_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.block_scaled_matmul import sums_over_last
from strategy.graph.ops.block_scales import Blocks
from strategy.graph.ops.traits import Product
from strategy.passes.low_precision import Scaling, linear_products
from strategy.sbp.tensor import DType, Rate


@dataclass(frozen=True, slots=True)
class BlockRecipe:
    """Codes and their scales.

    Attributes:
        codes: dtype of what is multiplied.
        scales: that of the scale of a block; with E4M3 the tensor has one, too.
        size: elements of a block along the dim that is summed over.
        square_weights: whether blocks of weights are as wide as they are long.
        whole: whether blocks must divide dims.
    """

    codes: DType
    scales: DType
    size: int
    square_weights: bool
    whole: bool


RECIPES: Mapping[Scaling, BlockRecipe] = {
    Scaling.BLOCK: BlockRecipe(DType.FLOAT8_E4M3, DType.FLOAT32, 128, square_weights=True, whole=False),
    Scaling.MX: BlockRecipe(DType.FLOAT8_E4M3, DType.FLOAT8_E8M0, 32, square_weights=False, whole=True),
    Scaling.NV: BlockRecipe(DType.FLOAT4_E2M1_X2, DType.FLOAT8_E4M3, 16, square_weights=True, whole=True),
}


def block_scaling(graph: Graph, recipe: BlockRecipe) -> Graph:
    """Forward and backward pass with linear maps on codes of a recipe.

    Raises:
        InputError: no layer has a linear map, or blocks do not divide a dim of one.
    """
    products = frozenset(name for name in linear_products(graph) if op_definition(graph.by_name[name].kind).block_coded)
    if not products:
        raise InputError("no linear map to multiply on codes", where="training: precision", expected="layers")
    report(_cut_blocks(graph, recipe, products), where="training: precision")
    builder = GraphBuilder({value.name: value for value in graph.values.values() if value.role is not Role.COMPUTED})
    casts = _Casts(graph, builder, recipe, products)
    for op in graph.ops:
        if op.name in products:
            casts.multiply(op)
        else:
            builder.add_op(op, op.inputs)
    return builder.build(loss=graph.loss)


def _cut_blocks(graph: Graph, recipe: BlockRecipe, products: Collection[str]) -> list[InputError]:
    """Dims of operands that blocks do not divide, each kind of product once."""
    found: dict[str, InputError] = {}
    for op in (op for op in graph.ops if op.name in products and recipe.whole):
        for position, name in enumerate(op.inputs):
            shape, blocks = graph.values[name].spec.shape, _blocks_of(graph, recipe, op, position)
            if any(size % block for size, block in zip(shape[-2:], blocks, strict=True)):
                what = f"blocks of {recipe.size} do not divide {name}"
                found.setdefault(
                    f"{graph.template_of(op)} {position}",
                    InputError(
                        what,
                        where=f"training: precision: {op.name}",
                        got=list(shape),
                        expected=f"{' x '.join(map(str, blocks))} over the last two dims",
                        hint="take precision fp8-block, whose last blocks may be shorter, or other sizes",
                    ),
                )
    return list(found.values())


def _blocks_of(graph: Graph, recipe: BlockRecipe, op: Op, position: int) -> Blocks:
    """Blocks of an operand: along the dim that its product sums over, of weights perhaps in both."""
    name = op.inputs[position]
    if recipe.square_weights and graph.parameter_of(name):
        return recipe.size, recipe.size
    cost = op_definition(op.kind).cost
    assert isinstance(cost, Product)
    return (1, recipe.size) if sums_over_last(cost, op.attrs, position) else (recipe.size, 1)


_LABELS: Mapping[tuple[bool, bool], str] = {(False, True): "rows", (True, False): "columns", (True, True): "squares"}
"""What is cut into blocks, by whether a block has several rows, and several columns."""


@dataclass(slots=True)
class _Casts:
    """The codes so far, by layer, tensor and blocks."""

    graph: Graph
    builder: GraphBuilder
    recipe: BlockRecipe
    products: Collection[str]
    wanted: dict[tuple[int | str | None, str], dict[Blocks, None]] = field(default_factory=dict)
    known: dict[tuple[int | str | None, str, Blocks], tuple[str, ...]] = field(default_factory=dict)
    amaxes: dict[tuple[int | str | None, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in self.graph.ops:
            for position, name in enumerate(op.inputs if op.name in self.products else ()):
                self.wanted.setdefault((op.any_layer, name), {})[self._blocks(op, position)] = None

    def multiply(self, op: Op) -> None:
        """A product, on codes."""
        blocks = [self._blocks(op, position) for position in range(len(op.inputs))]
        codes, scales, *whole = zip(*(self._cast(op, i, one) for i, one in enumerate(blocks)), strict=True)
        attrs: Attrs = {
            **op.attrs,
            "dtype": str(self.builder.spec(op.inputs[0]).dtype),
            "blocks": tuple(size for one in blocks for size in one),
        }
        inputs = (*codes, *scales, *(name for both in whole for name in both))
        kind, line = op_definition(op.kind).block_coded, lineage_of(op)
        self.builder.add(line, kind, inputs, outputs=op.outputs, attrs=attrs, phase=op.phase, layer=op.layer)

    def _blocks(self, op: Op, position: int) -> Blocks:
        return _blocks_of(self.graph, self.recipe, op, position)

    def _cast(self, op: Op, position: int, blocks: Blocks) -> tuple[str, ...]:
        """Codes and scales of a tensor; with its first cast all are made that its layer reads."""
        name = op.inputs[position]
        if (op.any_layer, name, blocks) not in self.known:
            for one in self.wanted[op.any_layer, name]:
                self.known[op.any_layer, name, one] = self._made(op, position, one)
        return self.known[op.any_layer, name, blocks]

    def _made(self, op: Op, position: int, blocks: Blocks) -> tuple[str, ...]:
        name = op.inputs[position]
        label = _LABELS[blocks[0] > 1, blocks[1] > 1]
        attrs: Attrs = {"dtype": str(self.recipe.codes), "scales": str(self.recipe.scales), "blocks": blocks}
        inputs = (name, *self._amax(op, position))
        labels, line = ("scales", "whole"), self._line(op, position, label)
        return self.builder.add(
            line, "quantize_blocks", inputs, labels=labels, attrs=attrs, phase=op.phase, layer=op.layer
        )

    def _amax(self, op: Op, position: int) -> tuple[str, ...]:
        """The figure that the scale of the tensor follows from, where it has one."""
        if self.recipe.scales is not DType.FLOAT8_E4M3:
            return ()
        name = op.inputs[position]
        if (op.any_layer, name) not in self.amaxes:
            line = self._line(op, position, "largest")
            self.amaxes[op.any_layer, name] = self.builder.add(line, "amax", (name,), phase=op.phase, layer=op.layer)[0]
        return (self.amaxes[op.any_layer, name],)

    def _line(self, op: Op, position: int, label: str) -> Lineage:
        """What is made of a tensor: of a parameter by its name, else by that of the product that reads it first."""
        name = op.inputs[position]
        if self.builder.values[name].rate is Rate.STEP:
            return self.graph.derived(name, label, op.layer)
        return of_op(op, f"x{position}.{label}", op.layer)
