"""Tiling: a linear map cut into column tiles that run one after the other (ZeRO-Infinity's memory-centric tiling).

    y = x w   w:tile0, w:tile1 are columns of w          pieces of what the rank holds of w
              y:tile0 = x w:tile0, y:tile1 = x w:tile1   y joins them
    dx        the sum of dy:tile0 w:tile0', ...          one after the other
    dw        dw:tile0 = x' dy:tile0, ...                each reduced by itself, then joined

The results are the same, and a rank needs one tile of the weight at a time and of its gradient: where parameters are
gathered per use (stage 3 of ZeRO), a tile is let go before the next is gathered (Rajbhandari et al. 2021,
arXiv:2104.07857, section 5.1.3). The logical weight stays one variable, so checkpoints know nothing of tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from strategy.base.errors import InputError, did_you_mean
from strategy.graph.graph import Graph, Lineage, Op, Value, check_graph, of_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Operands, Product
from strategy.passes.zero_layouts import persistent
from strategy.sbp.sbp import balanced_split
from strategy.sbp.tensor import TensorSpec


def tile(graph: Graph, tiles: int, patterns: Sequence[str]) -> Graph:
    """The training graph with the linear maps whose names match cut into `tiles`.

    Raises:
        InputError: a pattern matches no linear map, a map has fewer columns than tiles, or maps are on codes of blocks.
    """
    if tiles == 1:
        return graph
    if any(cost.blocks for op in graph.ops if isinstance(cost := op_definition(op.kind).cost, Product)):
        raise InputError(
            "linear maps on codes with a scale per block are not tiled",
            where="config: tiles",
            got=tiles,
            expected="1, or another precision",
        )
    weights = persistent(graph, frozen=True) | {op.outputs[0] for op in graph.ops if op_definition(op.kind).repeats}
    linear = {op.name: op for op in graph.ops if _computes(op, Operands.NN) and op.inputs[1] in weights}
    found = {name for pattern in patterns for name in linear if fnmatchcase(name, pattern)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in linear):
            hint = did_you_mean(pattern, linear)
            raise InputError("a pattern matches no linear map", where="config: tiled", got=pattern, hint=hint)
    for name, op in linear.items():
        columns = graph.values[op.outputs[0]].spec.shape[-1]
        if name in found and columns < tiles:
            expected = f"at most {columns} for {name}"
            raise InputError("more tiles than columns", where="config: tiles", got=tiles, expected=expected)
    tiled = _Tiler(graph, tiles, frozenset(found)).run()
    check_graph(tiled)
    return tiled


@dataclass(slots=True)
class _Tiler:
    """Copies a graph op by op, tiles in place of what is cut."""

    graph: Graph
    tiles: int
    maps: frozenset[str]
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def run(self) -> Graph:
        """The graph with tiles."""
        self.values.update(self.graph.values)
        for op in self.graph.ops:
            if op.name in self.maps:
                self._map(op)
            elif op.origin in self.maps and _computes(op, Operands.NT):
                self._input_gradient(op)
            elif op.origin in self.maps and _computes(op, Operands.TN):
                self._weight_gradient(op)
            else:
                self.ops.append(op)
        return replace(self.graph, values=self.values, ops=tuple(self.ops))

    def _cuts(self, columns: int) -> Iterator[tuple[str, int, int]]:
        yield from ((f"tile{i}", *cut) for i, cut in enumerate(balanced_split(0, columns, self.tiles)))

    def _add(self, like: Op, line: Lineage, kind: str, inputs: Sequence[str], spec: TensorSpec, source: str) -> str:
        """An op beside `like`, whose value lives at the rate of `source`."""
        self.values[line.name] = Value(line.name, spec, self.graph.values[source].rate)
        attrs = like.attrs if kind == like.kind else {}
        made = line.op(kind, inputs, like.phase, like.layer, attrs=attrs, after=like.after)
        self.ops.append(replace(made, repeats=like.repeats))
        return line.name

    def _slice(self, like: Op, source: str, line: Lineage, low: int, high: int) -> str:
        """Columns of a value."""
        spec = self.graph.values[source].spec
        begin, end = (*(0 for _ in spec.shape[:-1]), low), (*spec.shape[:-1], high)
        self._add(like, line, "slice", (source,), _columns(spec, high - low), source)
        self.ops[-1] = replace(self.ops[-1], attrs={"begin": begin, "end": end})
        return line.name

    def _weight(self, like: Op, w: str, tile_name: str, low: int, high: int) -> str:
        """A tile of a weight, cut where it is first used."""
        line = self.graph.derived(w, tile_name, like.layer)
        return line.name if line.name in self.values else self._slice(like, w, line, low, high)

    def _map(self, op: Op) -> None:
        x, w, *scales = op.inputs
        (result,), parts = op.outputs, []
        spec = self.graph.values[result].spec
        for tile_name, low, high in self._cuts(spec.shape[-1]):
            operands = x, self._weight(op, w, tile_name, low, high), *scales
            line = of_op(op, tile_name, op.layer)
            parts.append(self._add(op, line, op.kind, operands, _columns(spec, high - low), result))
        self.ops.append(replace(op, kind="concat", inputs=tuple(parts), attrs={"axis": len(spec.shape) - 1}))

    def _input_gradient(self, op: Op) -> None:
        """Tile by tile onto a running sum."""
        (grad, w, *scales), (result,) = op.inputs, op.outputs
        spec, total = self.graph.values[result].spec, ""
        for tile_name, low, high in self._cuts(self.graph.values[grad].spec.shape[-1]):
            piece = self._slice(op, grad, of_op(op, f"{tile_name}.dy", op.layer), low, high)
            operands = piece, self._weight(op, w, tile_name, low, high), *scales
            term = self._add(op, of_op(op, tile_name, op.layer), op.kind, operands, spec, result)
            line = of_op(op, f"{tile_name}.sum", op.layer)
            total = self._add(op, line, "add_n", (total, term), spec, result) if total else term
        last = self.ops.pop()
        del self.values[last.name]
        self.ops.append(replace(last, name=op.name, outputs=op.outputs, template=op.template))

    def _weight_gradient(self, op: Op) -> None:
        """Each tile is copied once it is there: so its terms are free when they are reduced, before the next tile."""
        x, grad, *scales = op.inputs
        (result,), parts = op.outputs, []
        spec = self.graph.values[result].spec
        for tile_name, low, high in self._cuts(spec.shape[-1]):
            piece = self._slice(op, grad, of_op(op, f"{tile_name}.dy", op.layer), low, high)
            shape, line = _columns(spec, high - low), of_op(op, f"{tile_name}.reduced", op.layer)
            term = self._add(op, of_op(op, tile_name, op.layer), op.kind, (x, piece, *scales), shape, result)
            parts.append(self._add(op, line, "copy", (term,), shape, result))
        self.ops.append(replace(op, kind="concat", inputs=tuple(parts), attrs={"axis": 1}))


def _computes(op: Op, operands: Operands) -> bool:
    """Whether an op is one matrix product, with these operands: part of a linear map."""
    return op_definition(op.kind).cost == Product(operands=operands)


def _columns(spec: TensorSpec, count: int) -> TensorSpec:
    return replace(spec, shape=(*spec.shape[:-1], count))
