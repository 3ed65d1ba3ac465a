"""What an op is: one `OpDef` per kind, in one file per family.

An op author states, for a kind: the shape rule, the FLOPs, the legal signatures over one mesh axis, the gradient
and the meaning. The meaning is written against an array module that is passed in (NumPy, CuPy) and works on the
piece of the tensors that a rank holds: under any listed signature, running it on the pieces gives the pieces of
the result. A signature over an n-d mesh is one legal 1-d signature per axis, each on the shapes that the axes
before it leave; it needs no rule of its own, because a piece of an op is again the same op on smaller tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops.scratch import DeclareScratch, Scratch
from strategy.graph.ops.traits import MEMORY_BOUND, CostClass, Fusion, PrecisionClass, RecomputeClass
from strategy.sbp.sbp import B, Owner, P, Partial, Reduce, Sbp, Split, may_be_partial
from strategy.sbp.tensor import Box, Shape, TensorSpec

if TYPE_CHECKING:
    from strategy.graph.ops.gradient import GradientBuilder

Array = Any
"""A NumPy or CuPy array."""
ArrayModule = Any
"""`numpy` or `cupy`."""

MAX = Partial(Reduce.MAX)
MIN = Partial(Reduce.MIN)


@dataclass(frozen=True, slots=True)
class AxisSignature:
    """One SBP per input and per output of an op, along one mesh axis. Updated variables follow `updates`."""

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]
    updates: tuple[Sbp, ...] = ()

    @property
    def all(self) -> tuple[Sbp, ...]:
        """All of them: inputs, outputs, updates."""
        return (*self.inputs, *self.outputs, *self.updates)

    def __str__(self) -> str:
        arrow = ", ".join(map(str, self.inputs)) + " -> " + ", ".join(map(str, self.outputs))
        return arrow + (f" updates {', '.join(map(str, self.updates))}" if self.updates else "")


@dataclass(slots=True)
class Workspace:
    """Scratch arrays of one actor (see `scratch`), allocated on first use and kept."""

    xp: ArrayModule
    arrays: dict[str, Array] = field(default_factory=dict)

    def get(self, name: str, shape: Shape, dtype: Any) -> Array:
        """An uninitialised array of this shape and dtype, in the same memory on every call."""
        found, size = self.arrays.get(name), math.prod(shape)
        if found is None or found.size < size or found.dtype != dtype:
            # Of bytes: CuPy makes no arrays of codes, but views.
            memory = self.xp.empty(size * np.dtype(dtype).itemsize, "uint8")
            found = self.arrays[name] = memory.view(dtype).reshape(shape)
        return found if found.shape == tuple(shape) else found.reshape(-1)[:size].reshape(shape)

    def constant(self, name: str, shape: Shape, dtype: Any, make: Callable[[], Array]) -> Array:
        """An array that `make` computes on first use and that nobody writes."""
        found = self.arrays.get(name)
        if found is None or found.shape != tuple(shape) or found.dtype != dtype:
            found = self.arrays[name] = make()
        return found


@dataclass(slots=True)
class Call:
    """One act of an op on one rank's pieces.

    `inputs`, `outputs` and `updates` are arrays; outputs are preallocated and must be written in full; updates are
    rewritten in place. The boxes say which piece of the logical tensor each array holds. `number` counts the acts
    of this op since the start; `first_of_piece` is False while an accumulator goes on with the piece it has begun.
    """

    xp: ArrayModule
    attrs: Attrs
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    updates: tuple[Array, ...]
    input_boxes: tuple[Box, ...]
    output_boxes: tuple[Box, ...]
    workspace: Scratch
    number: int = 0
    first_of_piece: bool = True


Specs = Sequence[TensorSpec]


@dataclass(frozen=True, slots=True)
class Example:
    """Operands on which an op is tried out: its validator runs every signature on them.

    Dims are long enough to be split in four, some of them unevenly. Floats are drawn distinct and evenly spaced in
    `ranges[position]` (default -2 to 2, never 0), which keeps them away from ties and kinks; integers uniformly from
    [low, high), which must be given. Positions count inputs, then updates. `derive` makes an input of the others as
    they were drawn, for ops that mean something only if it fits them: a maximum, the order of a sort.
    """

    inputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...] = ()
    attrs: Attrs = field(default_factory=dict)
    ranges: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    derive: Mapping[int, Callable[[Sequence[Array]], Array]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpDef:
    """Everything that sbplan knows of one kind of op.

    `infer(inputs, updates, attrs)` gives the output specs or raises InputError. `flop(inputs, outputs, attrs)` counts
    floating-point operations on the specs given (a rank's pieces, or the whole).
    `signatures(inputs, outputs, attrs, parts)` lists the legal 1-d signatures over an axis of `parts` ranks,
    all-broadcast excepted (it is always legal and added); a split of a dim with fewer rows than parts need not be left
    out, it is refused later. `gradient` appends the backward ops. `run` is the meaning. Bytes are those of all inputs,
    outputs and updates unless `nbytes` says otherwise. The other fields are traits (see `traits`): all that costs,
    passes and the search know of the op.
    """

    kind: str
    infer: Callable[[Specs, Specs, Attrs], tuple[TensorSpec, ...]]
    flop: Callable[[Specs, Specs, Attrs], int]
    signatures: Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]
    run: Callable[[Call], None]
    gradient: Callable[[GradientBuilder], None] | None = None
    nbytes: Callable[[Specs, Specs, Attrs], int] | None = None
    accumulates: bool = False
    """Its output is a step value made of micro-batch inputs: every act after the first of a step adds to it."""
    in_place: tuple[int, ...] = ()
    """Inputs any of which the first output may be written over: an element is read before it is written, and not after.

    Those of the positions that are one tensor are all meant at once."""
    ragged: bool = False
    """Its operands may be ragged: `Rows` in a call, and as many rows as are expected where FLOPs and bytes count."""
    repeats: bool = False
    """Its output is a micro-batch value made of step inputs: every act of a step gives it anew."""
    cost: CostClass = MEMORY_BOUND
    """What its time is bound by."""
    precision: PrecisionClass = PrecisionClass.FOLLOWS
    """What it computes in under mixed precision."""
    recompute: RecomputeClass = RecomputeClass.BETWEEN
    """What it is to selective recompute."""
    trains: bool = False
    """It writes a trained parameter, its first update, by what its first input says: the end of an optimiser's rule."""
    clips: bool = False
    """Its first output is the factor of every gradient: what follows from it belongs to the optimiser."""
    rearranges: bool = False
    """Its output is its input, and may be laid out otherwise: a copy of a copy is one copy."""
    piecewise: bool = False
    """A rank's piece of its first output is one of its first input: ZeRO passes a parameter through it shared out."""
    in_blocks: bool = False
    """Its pieces are made of whole blocks, so that few dims can be split by many ranks."""
    fuses: Fusion | None = None
    """Two ops that it does at once (see `passes.fusion`)."""
    expert_weights: int | None = None
    """Which input holds a weight per expert, along its first dim, if it is a parameter."""
    scratch: DeclareScratch | None = None
    """What its acts use beside their operands; None if nothing, or if only the host runs it."""
    coded: str = ""
    """The kind that does the same to codes of 8 bits, and reads the scales of both operands behind them."""
    block_coded: str = ""
    """The kind that does the same to codes with a scale per block."""
    examples: tuple[Example, ...] = ()


def axis_signatures(
    definition: OpDef, inputs: Specs, outputs: Specs, updates: Specs, attrs: Attrs, parts: int
) -> list[AxisSignature]:
    """All legal 1-d signatures over `parts` ranks, all-broadcast first, in the author's order, without duplicates."""
    whole = whole_signature(inputs, outputs, updates)
    return list(dict.fromkeys([whole, *definition.signatures(inputs, outputs, attrs, parts)]))


def whole_signature(inputs: Specs, outputs: Specs, updates: Specs) -> AxisSignature:
    """All-broadcast: legal for every op, and all that there is along an axis of one rank."""
    return AxisSignature((B,) * len(inputs), (B,) * len(outputs), (B,) * len(updates))


def owner_signatures(inputs: Specs, outputs: Specs, updates: Specs, parts: int) -> list[AxisSignature]:
    """One rank of the axis does all, the others nothing; legal for every op that reads or writes a tensor with dims.

    Scalars have no owner: those that are read are whole everywhere, those that are written are the owner's term of a
    sum, to which the others add nothing.
    """
    written = (*outputs, *updates)
    if not any(spec.shape for spec in (*inputs, *written)) or any(
        not s.shape and not s.dtype.is_float for s in written
    ):
        return []
    return [
        AxisSignature(
            tuple(Owner(k) if spec.shape else B for spec in inputs),
            tuple(Owner(k) if spec.shape else P for spec in outputs),
            tuple(Owner(k) for _ in updates),
        )
        for k in range(parts)
        if all(spec.shape for spec in updates)
    ]


LETTERS = "abcdefgh"
"""Names of dims for `split_letters`, where they have no better ones."""


def split_letters(operands: Sequence[str], results: Sequence[str], *, skip: str = "") -> list[AxisSignature]:
    """Signatures of an einsum-like op: splitting a letter splits every tensor that has it.

    Tensors without the letter are B if read; if written, they are P(sum) where the letter is summed away. So
    `["mk", "kn"] -> ["mn"]` gives S(0),B->S(0); B,S(1)->S(1); S(1),S(0)->P. `skip` are letters that cannot be split.
    """
    letters = dict.fromkeys("".join((*operands, *results)))
    found = []
    for letter in letters:
        if letter in skip:
            continue
        reads = tuple(Split(o.index(letter)) if letter in o else B for o in operands)
        writes = tuple(Split(r.index(letter)) if letter in r else P for r in results)
        found.append(AxisSignature(reads, writes))
    return found


def linear_in(positions: Sequence[int], arity: int, results: int = 1) -> AxisSignature:
    """P passes through an op that is linear in the inputs at `positions` taken together, the others whole."""
    return AxisSignature(tuple(P if i in positions else B for i in range(arity)), (P,) * results)


def picks_from(positions: Sequence[int], arity: int) -> list[AxisSignature]:
    """Terms of every reduction pass through an op whose output cells each copy one cell of the inputs at `positions`.

    A whole tensor also is a P(max) and a P(min) of itself, so those two are not listed again with some inputs B.
    """
    return [
        AxisSignature(tuple(term if i in positions else B for i in range(arity)), (term,)) for term in (P, MAX, MIN)
    ]


def elementwise_signatures(shape: Shape, arity: int, results: int = 1) -> list[AxisSignature]:
    """Any dim split alike in all inputs and outputs of one shape."""
    return [AxisSignature((Split(d),) * arity, (Split(d),) * results) for d in range(len(shape))]


def local_spec(spec: TensorSpec, sbp: Sbp, parts: int) -> TensorSpec | None:
    """The largest piece of a tensor over one axis; None where its dim has too few rows or its dtype has no terms."""
    if isinstance(sbp, Split):
        if sbp.dim >= len(spec.shape) or spec.shape[sbp.dim] < parts:
            return None
        size = -(-spec.shape[sbp.dim] // parts)
        return spec.piece((*spec.shape[: sbp.dim], size, *spec.shape[sbp.dim + 1 :]))
    if isinstance(sbp, Partial) and not may_be_partial(spec, sbp.reduce):
        return None
    return spec


def int_attr(attrs: Attrs, key: str) -> int:
    """The attribute `key`; raises InputError if it is no whole number."""
    found = attrs.get(key)
    if not isinstance(found, int):
        raise InputError(f"a wrong attribute {key!r}", got=found, expected="a whole number")
    return found


def float_attr(attrs: Attrs, key: str) -> float:
    """The attribute `key`; raises InputError if it is no number."""
    found = attrs.get(key)
    if not isinstance(found, int | float):
        raise InputError(f"a wrong attribute {key!r}", got=found, expected="a number")
    return float(found)


def ints_attr(attrs: Attrs, key: str) -> tuple[int, ...]:
    """The attribute `key`; raises InputError if it is no tuple of whole numbers."""
    found = attrs.get(key)
    whole = tuple(part for part in found if isinstance(part, int)) if isinstance(found, tuple) else ()
    if not isinstance(found, tuple) or len(whole) < len(found):
        raise InputError(f"a wrong attribute {key!r}", got=found, expected="a tuple of whole numbers")
    return whole


def floats_attr(attrs: Attrs, key: str) -> tuple[float, ...]:
    """The attribute `key`; raises InputError if it is no tuple."""
    found = attrs.get(key)
    if not isinstance(found, tuple):
        raise InputError(f"a wrong attribute {key!r}", got=found, expected="a tuple of numbers")
    return tuple(map(float, found))


def expect(condition: bool, problem: str, *, got: object, expected: str) -> None:
    """Raise InputError unless the condition holds: the shape rules' one way to refuse."""
    if not condition:
        raise InputError(problem, got=got, expected=expected)


def shapes(specs: Specs) -> tuple[Shape, ...]:
    """The shapes of several specs, for messages."""
    return tuple(spec.shape for spec in specs)
