"""Signatures over an n-d mesh: one legal layout of all tensors of an op.

Enumerated axis by axis: the op's 1-d signatures on the shapes that the earlier axes leave (see `ops.base`). An axis of
one rank offers the all-broadcast signature alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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

    def along(self, axis: int) -> AxisSignature:
        """What it is along one mesh axis."""
        sides = (tuple(nd[axis] for nd in side) for side in (self.inputs, self.outputs, self.updates))
        return AxisSignature(*sides)


_Attributes = tuple[tuple[str, int | float | str | tuple[int, ...]], ...]
"""Of an op, sorted by name."""


@dataclass(frozen=True, slots=True)
class _Operands:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...]

    @property
    def all(self) -> tuple[TensorSpec, ...]:
        return (*self.inputs, *self.outputs, *self.updates)


AxisFilter = Callable[[int, AxisSignature], bool]
"""(mesh axis, an op's signature along it) -> whether it is of interest."""


def op_signatures(
    graph: Graph, op: Op, mesh: Shape, *, owned: bool = False, wanted: AxisFilter | None = None
) -> tuple[Signature, ...]:
    """Every legal signature of `op` on `mesh`, all-broadcast first, in a fixed order.

    A frozen variable is never partial where it is at home: it is kept as it is, not as terms.

    Args:
        graph: the graph of the op.
        op: any of its ops.
        mesh: of the placement that the op runs on.
        owned: also those under which one rank of the first axis does all, with its own tensors, and the others nothing.
        wanted: which signatures along an axis are of interest; else all are.
    """
    operands = _Operands(graph.specs(op.inputs), graph.specs(op.outputs), graph.specs(op.updates))
    attrs = tuple(sorted(op.attrs.items()))
    if wanted is None:
        found = _enumerate(op.kind, operands, attrs, mesh, owned)
    else:
        found = _enumerate_wanted(op.kind, operands, attrs, mesh, owned, wanted)
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
    attrs: _Attributes,
    mesh: Shape,
    owned: bool,
) -> tuple[Signature, ...]:
    return _legal(operands, mesh, _by_axis(op_definition(kind), operands, dict(attrs), mesh, owned))


def _enumerate_wanted(
    kind: str,
    operands: _Operands,
    attrs: _Attributes,
    mesh: Shape,
    owned: bool,
    wanted: AxisFilter,
) -> tuple[Signature, ...]:
    """Those of which every axis is wanted; remembered by what is wanted of all that there is along each axis."""
    known = [frozenset(c for c in _candidates(kind, operands, attrs, p, owned and not k)) for k, p in enumerate(mesh)]
    verdicts = [{candidate: wanted(axis, candidate) for candidate in each} for axis, each in enumerate(known)]
    kept = tuple(frozenset(c for c, is_wanted in each.items() if is_wanted) for each in verdicts)
    key = kind, operands, attrs, mesh, owned, kept
    if key in _WANTED:
        return _WANTED[key]
    only_known = True

    def verdict(axis: int, candidate: AxisSignature) -> bool:
        nonlocal only_known
        if candidate in verdicts[axis]:
            return verdicts[axis][candidate]
        only_known = False
        return wanted(axis, candidate)

    found = _legal(operands, mesh, _by_axis(op_definition(kind), operands, dict(attrs), mesh, owned, verdict))
    if only_known:
        if len(_WANTED) > 8192:
            _WANTED.clear()
        _WANTED[key] = found
    return found


_WANTED: dict[object, tuple[Signature, ...]] = {}


@lru_cache(maxsize=8192)
def _candidates(
    kind: str,
    operands: _Operands,
    attrs: _Attributes,
    parts: int,
    owned: bool,
) -> tuple[AxisSignature, ...]:
    """Signatures along an axis of tensors that no other axis cuts."""
    specs = operands.inputs, operands.outputs, operands.updates
    found = axis_signatures(op_definition(kind), *specs, dict(attrs), parts)
    if owned:
        found += owner_signatures(operands.inputs, operands.outputs, operands.updates, parts)
    return tuple(found[:1] if parts == 1 else found)


def _legal(operands: _Operands, mesh: Shape, by_axis: Iterable[tuple[AxisSignature, ...]]) -> tuple[Signature, ...]:
    """The legal ones of signatures axis by axis, without duplicates."""
    found = []
    for per_axis in by_axis:
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
    definition: OpDef,
    operands: _Operands,
    attrs: Attrs,
    mesh: Shape,
    owned: bool = False,
    wanted: AxisFilter | None = None,
    axis: int = 0,
) -> Iterator[tuple[AxisSignature, ...]]:
    if axis == len(mesh):
        yield ()
        return
    parts = mesh[axis]
    candidates = axis_signatures(definition, operands.inputs, operands.outputs, operands.updates, attrs, parts)
    if owned:
        candidates += owner_signatures(operands.inputs, operands.outputs, operands.updates, parts)
    for candidate in candidates[:1] if parts == 1 else candidates:
        if wanted is not None and not wanted(axis, candidate):
            continue
        pieces = _pieces(operands, candidate, parts)
        if pieces is not None:
            for rest in _by_axis(definition, pieces, attrs, mesh, wanted=wanted, axis=axis + 1):
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
