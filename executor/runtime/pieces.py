"""What an act works with: pieces of arrays as flat memory, terms and their sum, one rank's part of a boxing step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from executor.runtime.summation_tree import Node, combined
from executor.runtime.transport.base import HostArray, Parcel, PendingTransfer, Transport
from strategy.graph.ops.base import ArrayModule
from strategy.graph.ops.scratch import Scratch
from strategy.program.program import BoxingTask
from strategy.sbp.sbp import Reduce
from strategy.sbp.tensor import Box, within

Requests = Iterator[PendingTransfer]
Start = Callable[[], Requests]
"""Begins an act; the iterator's end is the end of the act."""

_COMBINE: Mapping[Reduce, Callable[[ArrayModule], Callable[..., Any]]] = {
    Reduce.SUM: lambda xp: xp.add,
    Reduce.MIN: lambda xp: xp.minimum,
    Reduce.MAX: lambda xp: xp.maximum,
}
"""What combines two arrays of a module."""

_Piece = TypeVar("_Piece")

Copies = list[tuple[HostArray, HostArray]]
"""(into, from) pairs."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Pieces of one array, one per rank of the group: flat memory for the transport, and the copies that join both.

    `flat[i]` is the cut itself where that is contiguous (then without a copy), scratch otherwise, None for no
    piece. `copies` are (cut, scratch) pairs.
    """

    flat: Parcel
    copies: Copies
    xp: ArrayModule

    def pack(self) -> None:
        """Fill the scratch from the array."""
        for cut, scratch in self.copies:
            self.xp.copyto(scratch, cut)

    def unpack(self) -> None:
        """Fill the array from the scratch."""
        for cut, scratch in self.copies:
            self.xp.copyto(cut, scratch)


def piece_of(array: HostArray, piece: Box, frame: Box) -> HostArray:
    """The view of `piece` in the array that holds `frame`; a view of a scalar too, hence the ellipsis."""
    index: Any = (*within(piece, frame), ...)
    view: HostArray = array[index]
    return view


def cut(array: HostArray, frame: Box, pieces: Sequence[Box | None], scratch: Scratch, name: str) -> Cuts:
    """Cut `pieces` (None: nothing) out of the array that holds `frame`."""
    flat: list[HostArray | None] = []
    copies: Copies = []
    for index, piece in enumerate(pieces):
        view = None if piece is None else piece_of(array, piece, frame)
        if view is not None and not view.flags.c_contiguous:
            copies.append((view, scratch.get(f"{name}.{index}", view.shape, view.dtype)))
            view = copies[-1][1]
        flat.append(view)
    return Cuts(Parcel(flat), copies, scratch.xp)


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part of a boxing step; `me` is its index in the group."""

    task: BoxingTask
    me: int
    number: int
    transport: Transport
    source: HostArray
    target: HostArray
    scratch: Scratch

    @property
    def xp(self) -> ArrayModule:
        """The array module of `source` and `target`."""
        return self.scratch.xp

    def combiner(self, terms: Sequence[HostArray], into: HostArray) -> Callable[[], None]:
        """What reduces the terms in one binary tree over the ranks (`summation_tree`); asks for its scratch."""
        return self.tree_combiner({(at, at + 1): term for at, term in enumerate(terms)}, len(terms), into)

    def tree_combiner(self, terms: Mapping[Node, HostArray], total: int, into: HostArray) -> Callable[[], None]:
        """The same of nodes of a tree of `total` leaves."""
        add, xp = _COMBINE[self.task.reduce](self.xp), self.xp
        depths = range((total - 1).bit_length())
        halves = [self.scratch.get(f"right half {depth}", into.shape, into.dtype) for depth in depths]

        def combine() -> None:
            root = combined(
                terms, total, lambda left, right, place: add(left, right, out=place), into, halves.__getitem__
            )
            if root is not into:
                xp.copyto(into, root)

        return combine

    @property
    def frame(self) -> Box:
        """What `source` holds."""
        return self.task.source_boxes[self.me]

    @property
    def goal(self) -> Box:
        """What `target` holds."""
        return self.task.target_boxes[self.me]

    def others(self, pieces: Sequence[_Piece]) -> list[_Piece | None]:
        """`pieces`, with nothing for this rank itself."""
        return [None if index == self.me else piece for index, piece in enumerate(pieces)]

    def spread(self, positions: Sequence[int], arrays: Sequence[HostArray]) -> Parcel:
        """One array per rank of the group: those given at their positions, nothing for others and for this rank."""
        placed = dict(zip(positions, arrays, strict=True))
        return Parcel(None if index == self.me else placed.get(index) for index in range(len(self.task.group)))

    def exchange(self, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]) -> PendingTransfer:
        """One array to, and one from, each of the group; None is nothing."""
        return self.transport.exchange(self.task.group, self.number, send, receive)

    def all_gather(self, send: HostArray | None, receive: Sequence[HostArray | None]) -> PendingTransfer:
        """One array to all of the group, one from each of them."""
        return self.transport.all_gather(self.task.group, self.number, send, receive)


def terms_of(
    part: Part, own: HostArray, positions: Sequence[int], name: str = "term"
) -> tuple[Parcel, list[HostArray]]:
    """Where the terms of the own piece from other positions of the group arrive, and all the terms in their order."""
    terms = [own if i == part.me else part.scratch.get(f"{name}.{i}", own.shape, own.dtype) for i in positions]
    return part.spread(positions, terms), terms
