"""SBP attributes: how one logical tensor is laid out over the axes of a device mesh.

OneFlow's vocabulary (Yuan et al., 2021, arXiv:2110.15032, section 3.1); DTensor calls these placements
Shard, Replicate and Partial. Words: *axis* is a mesh axis, *dim* is a tensor dimension; never mixed.

Splits nest from the first axis to the last: on a 2x2 mesh, `(S(0), S(0))` cuts dim 0 in two, then each half
in two. Splits are balanced, the first parts one longer; so on a dim of 6, `(S(0), S(0))` over [2, 2] gives
2, 1, 2, 1 where `S(0)` over [4] gives 2, 2, 1, 1: they are different layouts.

A split may be rotated: under `S(0)+1`, rank r of p holds piece (r + 1) mod p. What travels round a ring of ranks is so
a chain of layouts: `S(0)`, `S(0)+1`, ... (Liu et al. 2023, arXiv:2310.01889).

Partial terms nest likewise: `(P(max), P(sum))` is the maximum over the first axis of sums over the second, so where
reductions differ the later axis is reduced first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar, cast

from strategy.base.errors import SbpError
from strategy.sbp.tensor import Box, Shape, TensorSpec

_Piece = TypeVar("_Piece")


@dataclass(frozen=True, slots=True)
class Split:
    """The tensor is cut along tensor dim `dim`; rank i of the p of the axis holds slice (i + shift) mod p."""

    dim: int
    shift: int = 0

    def __hash__(self) -> int:
        """Of what tells most of them apart: layouts are asked for all the time."""
        return self.dim

    def __post_init__(self) -> None:
        if self.dim < 0:
            raise SbpError("a split dim is negative", got=self.dim, expected="dim >= 0, counted from the left")
        if self.shift < 0:
            raise SbpError("a split is rotated backwards", got=self.shift, expected="shift >= 0")

    def __str__(self) -> str:
        return f"S({self.dim})+{self.shift}" if self.shift else f"S({self.dim})"

    def of(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Pieces in the order of the dim, as the ranks of the axis hold them."""
        return [*pieces[self.shift :], *pieces[: self.shift]]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every rank of the axis holds the whole tensor."""

    def __str__(self) -> str:
        return "B"


class Reduce(StrEnum):
    """How partial tensors combine."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank of the axis holds a term of full shape; the tensor is their reduction."""

    reduce: Reduce = Reduce.SUM

    def __hash__(self) -> int:
        """That of the reduction's name."""
        return str.__hash__(self.reduce)

    def __str__(self) -> str:
        return f"P({self.reduce})"


@dataclass(frozen=True, slots=True)
class Owner:
    """The rank at `coordinate` of the axis holds the whole tensor, the others an empty piece: the most uneven split."""

    coordinate: int

    def __post_init__(self) -> None:
        if self.coordinate < 0:
            raise SbpError("a coordinate is negative", got=self.coordinate, expected="coordinate >= 0")

    def __str__(self) -> str:
        return f"O({self.coordinate})"


Sbp = Split | Broadcast | Partial | Owner
NdSbp = tuple[Sbp, ...]
"""One SBP per mesh axis, outermost axis first."""

B = Broadcast()
P = Partial()

_TEXT = re.compile(r"S\((\d+)\)(?:\+([1-9]\d*))?|(B)|P(?:\((sum|min|max)\))?|O\((\d+)\)")


def parse_sbp(text: object, *, where: str = "sbp") -> Sbp:
    """`"S(0)"`, `"S(0)+1"`, `"B"`, `"P(sum)"` (or `"P"`) -> Sbp."""
    found = _sbp_of(text) if isinstance(text, str) else None
    if found is None:
        raise SbpError(
            "not an SBP",
            where=where,
            got=text,
            expected='"S(dim)", "S(dim)+shift", "B", "P(sum)", "P(min)", "P(max)" or "O(rank)"',
        )
    return found


@lru_cache(maxsize=256)
def _sbp_of(text: str) -> Sbp | None:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return None
    if match[1] is not None:
        return Split(int(match[1]), int(match[2] or 0))
    if match[5] is not None:
        return Owner(int(match[5]))
    return B if match[3] else Partial(Reduce(match[4] or "sum"))


def format_nd(nd_sbp: NdSbp) -> list[str]:
    """One text per axis, as the plan file writes it."""
    return [str(sbp) for sbp in nd_sbp]


def parse_nd(texts: object, *, where: str = "sbp") -> NdSbp:
    """The inverse of `format_nd`.

    Raises:
        SbpError: not a list, or one of its members is no SBP.
    """
    if not isinstance(texts, Sequence) or isinstance(texts, str | bytes):
        raise SbpError("not a list of SBPs", where=where, got=texts, expected="a list, one SBP per mesh axis")
    try:
        found = _nd_sbp_of(tuple(texts))
    except TypeError:  # a list among them, say, which parse_sbp names
        found = None
    return tuple(parse_sbp(text, where=where) for text in texts) if found is None else found


@lru_cache(maxsize=4096)
def _nd_sbp_of(texts: tuple[object, ...]) -> NdSbp | None:
    """None where one of them is no SBP. A plan writes few different ones, often."""
    found = [_sbp_of(text) if isinstance(text, str) else None for text in texts]
    return None if None in found else cast(NdSbp, tuple(found))


def adjoint(nd_sbp: NdSbp) -> NdSbp:
    """Layout in which a gradient arrives without communication: S <-> S, O <-> O, B <-> P(sum)."""
    return tuple(P if isinstance(sbp, Broadcast) else B if isinstance(sbp, Partial) else sbp for sbp in nd_sbp)


def balanced_split(begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    """[begin, end) in `parts` consecutive pieces, the first `(end - begin) % parts` one longer."""
    return list(itertools.pairwise(_cut(begin, end, parts, part) for part in range(parts + 1)))


def _cut(begin: int, end: int, parts: int, part: int) -> int:
    """Where a piece begins."""
    base, longer = divmod(end - begin, parts)
    return begin + part * base + min(part, longer)


def check_layout(shape: Shape, nd_sbp: NdSbp, mesh: Shape, *, where: str = "layout") -> None:
    """Raise unless every rank of `mesh` holds a piece that is not empty, ranks beside an owner excepted.

    Raises:
        SbpError: axis counts differ, a split dim does not exist, a dim is cut into more parts than it has rows, a
            rotation goes round the axis, or an axis has no such owner or the tensor no dims to be empty in.
    """
    if len(nd_sbp) != len(mesh):
        raise SbpError("one SBP per mesh axis is needed", where=where, got=format_nd(nd_sbp), expected=f"{len(mesh)}")
    smallest = list(shape)
    for sbp, parts in zip(nd_sbp, mesh, strict=True):
        if isinstance(sbp, Split):
            if sbp.dim >= len(shape):
                raise SbpError("split beyond the dims", where=where, got=str(sbp), expected=f"a dim of {shape}")
            if sbp.shift >= parts:
                raise SbpError("a rotation goes round the axis", where=where, got=str(sbp), expected=f"below {parts}")
            if smallest[sbp.dim] < parts:
                raise SbpError(
                    "a dim is split into more parts than it has rows",
                    where=where,
                    got=f"{format_nd(nd_sbp)} of {shape} over mesh {mesh}",
                    expected=f"at least {parts} rows, found {smallest[sbp.dim]}",
                )
            smallest[sbp.dim] //= parts
        elif isinstance(sbp, Owner):
            if sbp.coordinate >= parts:
                raise SbpError("no such owner", where=where, got=str(sbp), expected=f"a coordinate below {parts}")
            if not shape:
                raise SbpError("a scalar has no owner", where=where, got=str(sbp), expected="B or P")


def is_legal_layout(shape: Shape, nd_sbp: NdSbp, mesh: Shape) -> bool:
    """Whether `check_layout` would pass."""
    try:
        check_layout(shape, nd_sbp, mesh)
    except SbpError:
        return False
    return True


def local_box(shape: Shape, nd_sbp: NdSbp, mesh: Shape, coords: Shape) -> Box:
    """The piece that the rank at `coords` of `mesh` holds: [begin, end) per dim, in logical indices."""
    box = [(0, size) for size in shape]
    for sbp, parts, coord in zip(nd_sbp, mesh, coords, strict=True):
        if isinstance(sbp, Split):
            (begin, end), part = box[sbp.dim], (coord + sbp.shift) % parts
            box[sbp.dim] = _cut(begin, end, parts, part), _cut(begin, end, parts, part + 1)
        elif isinstance(sbp, Owner) and coord != sbp.coordinate:
            return _nothing(shape)
    return tuple(box)


def _nothing(shape: Shape) -> Box:
    """The empty piece."""
    return ((0, 0),) * len(shape)


@lru_cache(maxsize=65536)
def local_boxes(shape: Shape, nd_sbp: NdSbp, mesh: Shape) -> tuple[Box, ...]:
    """The pieces of all ranks of `mesh`, in row-major order."""
    boxes: list[Box] = [tuple((0, size) for size in shape)]
    for sbp, parts in zip(nd_sbp, mesh, strict=True):
        if isinstance(sbp, Split):
            dim = sbp.dim
            boxes = [(*b[:dim], cut, *b[dim + 1 :]) for b in boxes for cut in sbp.of(balanced_split(*b[dim], parts))]
        elif isinstance(sbp, Owner):
            boxes = [box if coord == sbp.coordinate else _nothing(shape) for box in boxes for coord in range(parts)]
        else:
            boxes = [box for box in boxes for _ in range(parts)]
    return tuple(boxes)


def local_shape(shape: Shape, nd_sbp: NdSbp, mesh: Shape, coords: Shape) -> Shape:
    """Shape held by the rank at `coords` of `mesh`.

    Raises:
        SbpError: a dim is split into more parts than it has rows (uneven splits are allowed, empty ones are not).
    """
    check_layout(shape, nd_sbp, mesh)
    return tuple(end - begin for begin, end in local_box(shape, nd_sbp, mesh, coords))


def may_be_partial(spec: TensorSpec, reduce: Reduce) -> bool:
    """Whether a tensor may be partial: floats under every reduction, integers under max and min, ragged ones as sums.

    Codes of 8 bits are whole, for their order is that of what they stand for beside one scale alone. A row that is not
    there counts as zero, which is neutral in sums alone.
    """
    if spec.ragged is not None:
        return reduce is Reduce.SUM
    if spec.dtype.is_code:
        return False
    return spec.dtype.is_float or reduce is not Reduce.SUM


def reductions(nd_sbp: NdSbp) -> frozenset[Reduce]:
    """How the terms of a layout combine; empty where nothing is partial."""
    return frozenset(sbp.reduce for sbp in nd_sbp if isinstance(sbp, Partial))


def owners(nd_sbp: NdSbp) -> frozenset[Owner]:
    """The owners that a layout names."""
    return frozenset(sbp for sbp in nd_sbp if isinstance(sbp, Owner))


def largest_position(nd_sbp: NdSbp, mesh: Shape) -> int:
    """Which rank of a mesh, in row-major order, holds a largest piece: the first, or the one that owners name."""
    position = 0
    for sbp, parts in zip(nd_sbp, mesh, strict=True):
        position = position * parts + (sbp.coordinate if isinstance(sbp, Owner) else 0)
    return position


def has_partial(nd_sbp: NdSbp) -> bool:
    """Whether any axis holds terms that are still to be reduced."""
    return any(isinstance(sbp, Partial) for sbp in nd_sbp)
