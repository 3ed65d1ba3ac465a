"""What kernels on ragged rows are tried on: uneven demand, pieces, experts without rows, no rows at all."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Array, Call
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import Box, DType, Ragged, Shape, TensorSpec
from tests.support.cuda_on_host.trials import OFFSET, OUTLIER, PoisonedWorkspace


@dataclass(frozen=True, slots=True)
class Routing:
    """The choices of the tokens of a piece, and which experts, groups and tokens of all (`dims`) are in it."""

    chosen: Array
    dims: Shape
    box: Box
    room: float = 0.0

    @property
    def cells(self) -> Array:
        """Of the rows that there are."""
        (first, last), (group, _), (token, _) = self.box
        own = np.nonzero((self.chosen >= first) & (self.chosen < last))
        _, groups, tokens = self.dims
        return np.unique((self.chosen[own].astype(np.int64) * groups + own[0] + group) * tokens + own[1] + token)

    def rows(self, width: int, dtype: DType) -> Rows:
        """A piece of rows, poisoned."""
        box = (*self.box, (0, width))
        shape = tuple(end - begin for begin, end in box)
        spec = TensorSpec(shape, dtype, Ragged(min(self.chosen.shape[2], self.dims[0]), self.dims, room=self.room))
        return Rows(np, np.full(spec.nbytes, 0xFF, np.uint8), spec, box)


@dataclass(frozen=True, slots=True)
class RowTrial:
    """One act on the rows of a routing.

    `inputs` are in double precision; those at `ragged` are rows [., width], all others arrays. A result is an array of
    this shape, or rows of this width.
    """

    kind: str
    routing: Routing
    inputs: tuple[Array, ...]
    ragged: tuple[int, ...]
    results: tuple[Shape | int, ...]
    attrs: Attrs = field(default_factory=dict)

    def call(self, element: DType) -> Call:
        """The act in an element type; results, scratch, and room for more rows are poisoned."""
        inputs = tuple(self._operand(position, array, element) for position, array in enumerate(self.inputs))
        outputs = tuple(self._result(result, element) for result in self.results)
        return Call(np, self.attrs, inputs, outputs, (), (), (), PoisonedWorkspace(np))

    def _operand(self, position: int, array: Array, element: DType) -> Array:
        if position not in self.ragged:
            return array.astype(element.numpy) if np.issubdtype(array.dtype, np.floating) else array.copy()
        found = self.routing.rows(array.shape[1], element)
        found.hold(self.routing.cells)[...] = array.astype(element.numpy)
        return found

    def _result(self, result: Shape | int, element: DType) -> Array:
        if isinstance(result, int):
            return self.routing.rows(result, element)
        found = np.empty(result, element.numpy)
        found.reshape(-1).view(np.uint8)[...] = 0xFF
        return found


def figures(piece: Array) -> list[Array]:
    """What a kernel has written: of rows, how many, their cells, and the rows themselves."""
    return [piece.index[:1], piece.cells, piece.rows] if isinstance(piece, Rows) else [piece]


def untouched(piece: Array) -> bool:
    """Whether what is behind the last row is as poisoned as it was."""
    if not isinstance(piece, Rows):
        return True
    behind = (piece.index[1 + piece.count :], piece.room[piece.count :])
    return all((part.reshape(-1).view(np.uint8) == 0xFF).all() for part in behind)


def _routing(rng: np.random.Generator, tokens: tuple[int, int], experts: int, choices: int) -> Routing:
    """Every token chooses different experts, all of which are here."""
    chosen = np.argsort(rng.random((*tokens, experts)), axis=-1)[..., :choices].astype(np.int32)
    return Routing(chosen, (experts, *tokens), ((0, experts), (0, tokens[0]), (0, tokens[1])))


def few(rng: np.random.Generator) -> Routing:
    """Room for an even number of rows; of some experts there is none."""
    found = _routing(rng, (2, 3), 5, 2)
    return Routing(np.where(found.chosen == 3, -1, found.chosen), found.dims, found.box)


def of_a_piece(rng: np.random.Generator) -> Routing:
    """Experts 2 to 4 of 6, groups 1 and 2 of 4, tokens 3 to 9 of 10; room for an odd number."""
    chosen = np.argsort(rng.random((2, 7, 6)), axis=-1)[..., :3]
    return Routing(chosen, (6, 4, 10), ((2, 5), (1, 3), (3, 10)))


def all_to_one(rng: np.random.Generator) -> Routing:
    """Rows of one expert for several tiles, the last of one row."""
    return Routing(np.full((1, 257, 1), 1, np.int32), (3, 1, 257), ((0, 3), (0, 1), (0, 257)))


def nobody(rng: np.random.Generator) -> Routing:
    """No token chose the experts that are here."""
    return Routing(rng.integers(2, 4, (2, 5, 2)).astype(np.int32), (4, 2, 5), ((0, 2), (0, 2), (0, 5)))


def a_row(rng: np.random.Generator) -> Routing:
    """One, less than what is before the first vector."""
    return Routing(np.array([[[1], [3]]], np.int32), (4, 1, 2), ((1, 2), (0, 1), (0, 2)))


def twice(rng: np.random.Generator) -> Routing:
    """Some tokens chose an expert twice."""
    return Routing(rng.integers(0, 3, (2, 9, 3)), (3, 2, 9), ((0, 3), (0, 2), (0, 9)))


def many(rng: np.random.Generator) -> Routing:
    """Tokens of several chunks."""
    return _routing(rng, (2, 1300), 3, 2)


def of_many_experts(rng: np.random.Generator) -> Routing:
    """More experts than a block has threads."""
    return Routing(np.array([[[0, 100], [258, 7]]], np.int32), (260, 1, 2), ((0, 260), (0, 1), (0, 2)))


Maker = Callable[[str, np.random.Generator], Iterator[RowTrial]]


def _matrix(rng: np.random.Generator, rows: int, width: int) -> Array:
    found = rng.standard_normal((rows, width))
    if rows:
        found[0] += OFFSET
        found[-1, width // 2] = OUTLIER
    return found


def _each(operands: int, results: int = 1) -> Maker:
    def make(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
        for drawn, width in ((few, 77), (few, 1028), (of_a_piece, 24), (all_to_one, 8), (nobody, 8), (a_row, 1)):
            routing = drawn(rng)
            rows = tuple(_matrix(rng, len(routing.cells), width) for _ in range(operands))
            attrs = {"limit": 1.2} if "bounded" in kind else {}
            yield RowTrial(kind, routing, rows, tuple(range(operands)), (width,) * results, attrs)

    return make


def _add_n(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    for operands in (1, 2, 3):
        yield from _each(operands)(kind, rng)


_ROUTED = (
    (few, 77),
    (few, 1028),
    (of_a_piece, 24),
    (of_a_piece, 3000),
    (all_to_one, 8),
    (nobody, 12),
    (twice, 8),
)


def _dispatch(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    """Cells alone are found by chunks of tokens, whether there are weights or not; all else takes a token at a time."""
    every = [(one, weighted) for one in _ROUTED for weighted in (False, True)]
    for (drawn, width), weighted in (*every, ((many, 4), True), ((of_many_experts, 3), False)):
        routing = drawn(rng)
        x = rng.standard_normal((*routing.chosen.shape[:2], width))
        weights = (rng.random(routing.chosen.shape),) * weighted
        yield RowTrial(kind, routing, (x, routing.chosen, *weights), (), (width,))


def _combine(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    for (drawn, width), weighted in ((one, weighted) for one in _ROUTED for weighted in (False, True)):
        routing = drawn(rng)
        rows = rng.standard_normal((len(routing.cells), width))
        weights = (rng.random(routing.chosen.shape),) * weighted
        shape = (*routing.chosen.shape[:2], width)
        yield RowTrial(kind, routing, (rows, routing.chosen, *weights), (0,), (shape,))


def _inner(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    """Figures above zero: a product of few choices has no larger one beside it that errors could be measured by."""
    for drawn, width in _ROUTED:
        routing = drawn(rng)
        rows = rng.random((len(routing.cells), width))
        x = rng.random((*routing.chosen.shape[:2], width))
        yield RowTrial(kind, routing, (rows, routing.chosen, x), (0,), (routing.chosen.shape,))


_MULTIPLIED = ((few, 8, 12), (few, 77, 130), (of_a_piece, 40, 136), (all_to_one, 24, 20), (nobody, 8, 8), (a_row, 3, 5))


def _grouped(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    for (drawn, inner, outer), transpose in ((one, transpose) for one in _MULTIPLIED for transpose in (0, 1)):
        routing = drawn(rng)
        (first, last), *_ = routing.box
        rows = rng.standard_normal((len(routing.cells), inner))
        w = rng.standard_normal((last - first, *((outer, inner) if transpose else (inner, outer))))
        yield RowTrial(kind, routing, (rows, w), (0,), (outer,), {"transpose": transpose})


def _grouped_tn(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    for drawn, inner, outer in _MULTIPLIED:
        routing = drawn(rng)
        (first, last), *_ = routing.box
        rows, dy = (rng.standard_normal((len(routing.cells), width)) for width in (inner, outer))
        yield RowTrial(kind, routing, (rows, dy), (0, 1), ((last - first, inner, outer),))


def _by_expert(kind: str, rng: np.random.Generator) -> Iterator[RowTrial]:
    for drawn, width in _ROUTED[:-1]:
        routing = drawn(rng)
        (first, last), *_ = routing.box
        rows, adds = _matrix(rng, len(routing.cells), width), kind == "add_by_expert"
        bias = (rng.standard_normal((last - first, width)),) * adds
        yield RowTrial(kind, routing, (rows, *bias), (0,), (width if adds else (last - first, width),))


_MAKERS: Mapping[str, Maker] = {
    "gelu": _each(1),
    "gelu_grad": _each(2),
    "silu": _each(1),
    "silu_grad": _each(2),
    "swiglu": _each(2),
    "swiglu_grad": _each(3, 2),
    "bounded_swiglu": _each(2),
    "bounded_swiglu_dgate": _each(3),
    "bounded_swiglu_dup": _each(3),
    "add_by_expert": _by_expert,
    "sum_by_expert": _by_expert,
    "mul": _each(2),
    "add_n": _add_n,
    "dropless_dispatch": _dispatch,
    "dropless_combine": _combine,
    "dropless_inner": _inner,
    "grouped_matmul": _grouped,
    "grouped_matmul_tn": _grouped_tn,
}


def row_trials(kind: str) -> list[RowTrial]:
    """The trials of a kind on rows."""
    return list(_MAKERS[kind](kind, np.random.default_rng(zlib.crc32(kind.encode()))))


def row_kinds() -> list[str]:
    """Kinds that there are such trials of."""
    return sorted(_MAKERS)
