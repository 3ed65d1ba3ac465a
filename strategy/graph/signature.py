"""Signatures over an n-d mesh: one legal layout of all tensors of an op.

Enumerated axis by axis: the op's 1-d signatures on the shapes that the earlier axes leave (see `ops.base`). An axis of
one rank offers the all-broadcast signature alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from strategy.base.errors import present
from strategy.graph.graph import Attrs, Graph, Op, Role, deciding_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import AxisSignature, OpDef, axis_signatures, local_spec, owner_signatures
from strategy.sbp.sbp import NdSbp, has_partial, is_legal_layout
from strategy.sbp.tensor import Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class Signature:
    """One NdSbp per input, output and updated variable of an op."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    updates: tuple[NdSbp, ...] = ()

    @property
    def layouts(self) -> tuple[NdSbp, ...]:
        """All of them: inputs, outputs, updates."""
        return (*self.inputs, *self.outputs, *self.updates)


@dataclass(frozen=True, slots=True)
class _Operands:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...]

    @property
    def all(self) -> tuple[TensorSpec, ...]:
        return (*self.inputs, *self.outputs, *self.updates)


def op_signatures(graph: Graph, op: Op, mesh: Shape, *, owned: bool = False) -> tuple[Signature, ...]:
    """Every legal signature of `op` on `mesh`, all-broadcast first, in a fixed order.

    A frozen variable is never partial where it is at home: it is kept as it is, not as terms.

    Args:
        graph: the graph of the op.
        op: any of its ops.
        mesh: of the placement that the op runs on.
        owned: also those under which one rank of the first axis does all, with its own tensors, and the others nothing.
    """
    operands = _Operands(graph.specs(op.inputs), graph.specs(op.outputs), graph.specs(op.updates))
    found = _enumerate(op.kind, operands, tuple(sorted(op.attrs.items())), mesh, owned)
    frozen = [
        position
        for position, name in enumerate(op.inputs)
        if graph.values[name].role is Role.VARIABLE and name not in graph.updater and deciding_op(graph, name) is op
    ]
    if not frozen:
        return found
    return tuple(s for s in found if not any(has_partial(s.inputs[position]) for position in frozen))


@lru_cache(maxsize=8192)
def _enumerate(
    kind: str,
    operands: _Operands,
    attrs: tuple[tuple[str, int | float | str | tuple[int, ...]], ...],
    mesh: Shape,
    owned: bool,
) -> tuple[Signature, ...]:
    found = []
    for per_axis in _by_axis(op_definition(kind), operands, dict(attrs), mesh, owned=owned):
        signature = Signature(
            tuple(tuple(axis.inputs[i] for axis in per_axis) for i in range(len(operands.inputs))),
            tuple(tuple(axis.outputs[i] for axis in per_axis) for i in range(len(operands.outputs))),
            tuple(tuple(axis.updates[i] for axis in per_axis) for i in range(len(operands.updates))),
        )
        pairs = zip(operands.all, signature.layouts, strict=True)
        if all(is_legal_layout(spec.shape, nd_sbp, mesh) for spec, nd_sbp in pairs):
            found.append(signature)
    return tuple(dict.fromkeys(found))


def _by_axis(
    definition: OpDef, operands: _Operands, attrs: Attrs, mesh: Shape, *, owned: bool = False
) -> Iterator[tuple[AxisSignature, ...]]:
    if not mesh:
        yield ()
        return
    parts = mesh[0]
    candidates = axis_signatures(definition, operands.inputs, operands.outputs, operands.updates, attrs, parts)
    if owned:
        candidates += owner_signatures(operands.inputs, operands.outputs, operands.updates, parts)
    for candidate in candidates[:1] if parts == 1 else candidates:
        pieces = _pieces(operands, candidate, parts)
        if pieces is not None:
            for rest in _by_axis(definition, pieces, attrs, mesh[1:]):
                yield (candidate, *rest)


def _pieces(operands: _Operands, signature: AxisSignature, parts: int) -> _Operands | None:
    """The largest pieces that one axis leaves; None where a dim is too short."""
    layouts = (*signature.inputs, *signature.outputs, *signature.updates)
    pieces: list[TensorSpec] = []
    for spec, sbp in zip(operands.all, layouts, strict=True):
        piece = local_spec(spec, sbp, parts)
        if piece is None:
            return None
        pieces.append(piece)
    first, second = len(operands.inputs), len(operands.inputs) + len(operands.outputs)
    return _Operands(tuple(pieces[:first]), tuple(pieces[first:second]), tuple(pieces[second:]))


def piece_specs(specs: Sequence[TensorSpec], layouts: Sequence[NdSbp], mesh: Shape) -> tuple[TensorSpec, ...]:
    """The largest piece of each tensor under its layout: what the busiest rank holds."""
    found = []
    for spec, nd_sbp in zip(specs, layouts, strict=True):
        piece = spec
        for sbp, parts in zip(nd_sbp, mesh, strict=True):
            piece = present(local_spec(piece, sbp, parts), f"a piece of {piece.shape} by {sbp} over {parts}")
        found.append(piece)
    return tuple(found)
