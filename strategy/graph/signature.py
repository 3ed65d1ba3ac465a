"""Signatures over an n-d mesh: one legal layout of all tensors of an op.

Enumerated axis by axis: the op's 1-d signatures on the shapes that the earlier axes leave (see `ops.base`). An axis of
one rank offers the all-broadcast signature alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import cast

from strategy.base.errors import present
from strategy.base.identity import Identity
from strategy.base.numbers import Numbers
from strategy.graph.graph import Attr, Attrs, Graph, Op, Role, deciding_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import (
    AxisSignature,
    OpDef,
    axis_signatures,
    local_spec,
    owner_signatures,
    whole_signature,
)
from strategy.sbp.sbp import NdSbp, Owner, Partial, Sbp, Split, has_partial, may_be_partial
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


_Attributes = tuple[tuple[str, Attr], ...]
"""Of an op, sorted by name."""


@dataclass(frozen=True, slots=True)
class _Operands:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...]

    @property
    def all(self) -> tuple[TensorSpec, ...]:
        return (*self.inputs, *self.outputs, *self.updates)


SEED = "seed"
"""The attribute that says which random numbers an op draws."""
SbpFilter = Callable[[int, int, Sbp], bool]
"""(mesh axis, position among an op's inputs, outputs and updates, SBP there along it) -> whether it is of interest."""


def op_signatures(
    graph: Graph, op: Op, mesh: Shape, *, owned: bool = False, wanted: SbpFilter | None = None
) -> tuple[Signature, ...]:
    """Every legal signature of `op` on `mesh`, all-broadcast first, in a fixed order.

    A frozen variable is never partial where it is at home: it is kept as it is, not as terms.

    Args:
        graph: the graph of the op.
        op: any of its ops.
        mesh: of the placement that the op runs on.
        owned: also those under which one rank of the first axis does all, with its own tensors, and the others nothing.
        wanted: which layouts along an axis are of interest; else all are.
    """
    asked = _asked(graph, op, mesh, owned)
    found = _enumerate(*asked) if wanted is None else _listing(*asked).wanted(wanted)
    return _as_held(found, _frozen(graph, op))


def _asked(graph: Graph, op: Op, mesh: Shape, owned: bool) -> tuple[str, _Operands, _Attributes, Shape, bool]:
    operands = _Operands(graph.specs(op.inputs), graph.specs(op.outputs), graph.specs(op.updates))
    return op.kind, operands, tuple(sorted(op.attrs.items())), mesh, owned


def _frozen(graph: Graph, op: Op) -> tuple[int, ...]:
    """The inputs that are frozen variables at home."""
    return tuple(
        [
            position
            for position, name in enumerate(op.inputs)
            if graph.values[name].role is Role.VARIABLE and name not in graph.updater and deciding_op(graph, name) is op
        ]
    )


def _as_held(found: tuple[Signature, ...], frozen: Sequence[int]) -> tuple[Signature, ...]:
    """Those under which no frozen variable is partial where it is at home."""
    if not frozen:
        return found
    return tuple(s for s in found if not any(has_partial(s.inputs[position]) for position in frozen))


@dataclass(frozen=True, slots=True)
class Likeness:
    """What ops have in common that do the same, which random numbers they draw aside; `sides` are numbers of specs."""

    kind: str
    sides: tuple[tuple[int, ...], ...]
    attrs: _Attributes


def likenesses(graph: Graph) -> Mapping[str, Likeness]:
    """Op -> what it does; worked out once for a graph."""
    return _likenesses(Identity(graph))


@lru_cache(maxsize=8)
def _likenesses(known: Identity) -> Mapping[str, Likeness]:
    graph, numbers = cast(Graph, known.held), Numbers[TensorSpec]()
    number = {name: numbers.of(value.spec) for name, value in graph.values.items()}
    found, alike = {}, dict[Likeness, Likeness]()
    for op in graph.ops:
        sides = tuple([tuple([number[name] for name in side]) for side in (op.inputs, op.outputs, op.updates)])
        attrs = tuple(sorted((name, value) for name, value in op.attrs.items() if name != SEED))
        one = Likeness(op.kind, sides, attrs)
        found[op.name] = alike.setdefault(one, one)
    return MappingProxyType(found)


@dataclass(slots=True)
class Listings:
    """The signatures of a graph's ops on one mesh; what ops do alike is looked up once.

    Attributes:
        graph, mesh, owned: see `op_signatures`.
    """

    graph: Graph
    mesh: Shape
    owned: bool = False
    every: dict[object, tuple[Signature, ...]] = field(default_factory=dict)
    listings: dict[object, _Listing] = field(default_factory=dict)

    def of(self, op: Op, wanted: SbpFilter | None = None) -> tuple[Signature, ...]:
        """See `op_signatures`; of an op of the graph."""
        key, frozen = (self.likeness[op.name], op.attrs.get(SEED)), _frozen(self.graph, op)
        if wanted is None:
            if (key, frozen) not in self.every:
                self.every[key, frozen] = _as_held(_enumerate(*_asked(self.graph, op, self.mesh, self.owned)), frozen)
            return self.every[key, frozen]
        if key not in self.listings:
            self.listings[key] = _listing(*_asked(self.graph, op, self.mesh, self.owned))
        return _as_held(self.listings[key].wanted(wanted), frozen)

    @property
    def likeness(self) -> Mapping[str, Likeness]:
        """See `likenesses`."""
        return likenesses(self.graph)


@lru_cache(maxsize=8192)
def _enumerate(
    kind: str,
    operands: _Operands,
    attrs: _Attributes,
    mesh: Shape,
    owned: bool,
) -> tuple[Signature, ...]:
    return _Listing(op_definition(kind), operands, dict(attrs), mesh, owned).all_of(None)


@lru_cache(maxsize=8192)
def _listing(kind: str, operands: _Operands, attrs: _Attributes, mesh: Shape, owned: bool) -> _Listing:
    return _Listing(op_definition(kind), operands, dict(attrs), mesh, owned)


@dataclass(slots=True, eq=False)
class _Listing:
    """The signatures of all ops that are alike, listed once for all filters that want the same of them."""

    definition: OpDef
    operands: _Operands
    attrs: Attrs
    mesh: Shape
    owned: bool
    uncut: tuple[list[AxisSignature], ...] = field(init=False)
    """Signatures along each axis of tensors that no other axis cuts."""
    asked: tuple[tuple[int, int, Sbp], ...] = ()
    """How these lay out what: what a filter is asked first."""
    known: dict[tuple[bool, ...], tuple[Signature, ...]] = field(default_factory=dict)
    """By the answers, where nothing else had to be asked."""

    def __post_init__(self) -> None:
        self.uncut = tuple(self._candidates(self.operands, axis) for axis in range(len(self.mesh)))

    def wanted(self, wanted: SbpFilter) -> tuple[Signature, ...]:
        """Those of which everything is wanted along every axis; along an axis of one rank nothing is asked."""
        if not self.asked:
            axes = ((axis, candidates) for axis, candidates in enumerate(self.uncut) if self.mesh[axis] > 1)
            places = ((axis, *place) for axis, candidates in axes for one in candidates for place in enumerate(one.all))
            self.asked = tuple(dict.fromkeys(places))
        answers = tuple([wanted(*one) for one in self.asked])
        if answers in self.known:
            return self.known[answers]
        verdicts = dict(zip(self.asked, answers, strict=True))

        def verdict(axis: int, position: int, sbp: Sbp) -> bool:
            one = axis, position, sbp
            if one not in verdicts:
                verdicts[one] = wanted(axis, position, sbp)
            return verdicts[one]

        found = self.all_of(verdict)
        if len(verdicts) == len(self.asked):
            self.known[answers] = found
        return found

    def all_of(self, wanted: SbpFilter | None) -> tuple[Signature, ...]:
        """Every legal one, but for what is not wanted."""
        shapes = tuple(spec.shape for spec in self.operands.all)
        return tuple(_signature(per_axis) for per_axis in self._by_axis(self.operands, shapes, wanted, 0))

    def _candidates(self, operands: _Operands, axis: int) -> list[AxisSignature]:
        """Signatures along an axis, of tensors that earlier ones have cut."""
        sides, parts = (operands.inputs, operands.outputs, operands.updates), self.mesh[axis]
        if parts == 1:
            return [whole_signature(*sides)]
        found = axis_signatures(self.definition, *sides, self.attrs, parts)
        if self.owned and axis == 0:
            found += owner_signatures(*sides, parts)
        return found

    def _by_axis(
        self, operands: _Operands, shortest: tuple[Shape, ...], wanted: SbpFilter | None, axis: int
    ) -> Iterator[tuple[AxisSignature, ...]]:
        """What there is along an axis and all later ones; of operands there are largest pieces and shortest dims."""
        if axis == len(self.mesh):
            yield ()
            return
        parts = self.mesh[axis]
        for candidate in self.uncut[axis] if operands is self.operands else self._candidates(operands, axis):
            sbps = candidate.all
            asks = wanted if parts > 1 else None
            if asks is not None and not all(asks(axis, position, sbp) for position, sbp in enumerate(sbps)):
                continue
            if not all(map(_is_legal, operands.all, shortest, sbps, repeat(parts))):
                continue
            if axis + 1 == len(self.mesh):
                yield (candidate,)
                continue
            pieces = operands if parts == 1 else _pieces(operands, candidate, parts)
            cut = tuple(_cut(lengths, sbp, parts) for lengths, sbp in zip(shortest, sbps, strict=True))
            for rest in self._by_axis(pieces, cut, wanted, axis + 1):
                yield (candidate, *rest)


def _signature(per_axis: Sequence[AxisSignature]) -> Signature:
    """What is made up of signatures along each axis."""
    return Signature(
        tuple(zip(*[axis.inputs for axis in per_axis], strict=True)),
        tuple(zip(*[axis.outputs for axis in per_axis], strict=True)),
        tuple(zip(*[axis.updates for axis in per_axis], strict=True)),
    )


def _is_legal(spec: TensorSpec, shortest: Shape, sbp: Sbp, parts: int) -> bool:
    """Whether an axis may lay out what earlier ones have left, of which the shortest piece has such dims."""
    if isinstance(sbp, Split):
        return sbp.dim < len(shortest) and sbp.shift < parts <= shortest[sbp.dim]
    if isinstance(sbp, Partial):
        return may_be_partial(spec, sbp.reduce)
    return not isinstance(sbp, Owner) or (sbp.coordinate < parts and bool(shortest))


def _cut(lengths: Shape, sbp: Sbp, parts: int) -> Shape:
    """The dims of the shortest piece."""
    if not isinstance(sbp, Split):
        return lengths
    return (*lengths[: sbp.dim], lengths[sbp.dim] // parts, *lengths[sbp.dim + 1 :])


def _pieces(operands: _Operands, signature: AxisSignature, parts: int) -> _Operands:
    """The largest pieces that one axis leaves."""
    pairs = zip(operands.all, signature.all, strict=True)
    pieces = tuple([present(local_spec(spec, sbp, parts), "a piece of what is legal") for spec, sbp in pairs])
    first, second = len(operands.inputs), len(operands.inputs) + len(operands.outputs)
    return _Operands(pieces[:first], pieces[first:second], pieces[second:])


def piece_specs(specs: Sequence[TensorSpec], layouts: Sequence[NdSbp], mesh: Shape) -> tuple[TensorSpec, ...]:
    """The largest piece of each tensor under its layout: what the busiest rank holds."""
    return tuple([_piece(spec, nd_sbp, mesh) for spec, nd_sbp in zip(specs, layouts, strict=True)])


@lru_cache(maxsize=1 << 14)
def _piece(spec: TensorSpec, nd_sbp: NdSbp, mesh: Shape) -> TensorSpec:
    for sbp, parts in zip(nd_sbp, mesh, strict=True):
        spec = present(local_spec(spec, sbp, parts), f"a piece of {spec.shape} by {sbp} over {parts}")
    return spec
