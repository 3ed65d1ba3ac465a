"""Boxing and transfers on one rank: what moves is the transport's business, what it means is decided here.

A collective act is a generator of requests: it starts a movement, yields it until it is through, works on what
came, and starts the next; the worker polls in between and runs other streams meanwhile. `prepare` builds one for
given arrays once, so that an act itself looks nothing up and allocates nothing.

Cuts of an array that lie together in memory are sent and received in place; others go through scratch arrays that
are kept. Reductions add in rank order, so their results are bitwise the same on all ranks, transports and runs.

Bytes handed over to other ranks by the whole group, for p ranks and a tensor of T bytes that the group holds:

    all_reduce       P -> B        2 T (p - 1)      each rank 2 T (p - 1) / p where p divides the elements
    reduce_scatter   P -> S(d)     T (p - 1)        each rank T less its own target piece
    all_gather       S(d) -> B     T (p - 1)        each rank its own piece x (p - 1)
    all_to_all       S(i) -> S(j)  T (p - 1) / p    where both cuts are even; each rank its piece less what it keeps
    slice            B -> S, B -> P, S -> P: 0
    transfer         the boxes of the messages whose two ends are different ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from executor.transport.base import HostArray, Request, Transport
from strategy.ops.base import Workspace
from strategy.program import ActKind, BoxingTask, TransferTask
from strategy.sbp import Reduce, balanced_split
from strategy.tensor import Box, intersect, within

Requests = Iterator[Request]
Start = Callable[[], Requests]
"""Begins an act; the iterator's end is the end of the act."""

_COMBINE = {Reduce.SUM: np.add, Reduce.MIN: np.minimum, Reduce.MAX: np.maximum}

_Piece = TypeVar("_Piece")

_Copies = list[tuple[HostArray, HostArray]]
"""(into, from) pairs."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Pieces of one array, one per rank of the group: flat memory for the transport, and the copies that join both.

    `flat[i]` is the cut itself where that is contiguous (then without a copy), scratch otherwise, None for no
    piece. `copies` are (cut, scratch) pairs.
    """

    flat: tuple[HostArray | None, ...]
    copies: _Copies

    def pack(self) -> None:
        """Fill the scratch from the array."""
        for cut, scratch in self.copies:
            np.copyto(scratch, cut)

    def unpack(self) -> None:
        """Fill the array from the scratch."""
        for cut, scratch in self.copies:
            np.copyto(cut, scratch)


def piece_of(array: HostArray, piece: Box, frame: Box) -> HostArray:
    """The view of `piece` in the array that holds `frame`; a view of a scalar too, hence the ellipsis."""
    index: Any = (*within(piece, frame), ...)
    view: HostArray = array[index]
    return view


def cut(array: HostArray, frame: Box, pieces: Sequence[Box | None], scratch: Workspace, name: str) -> Cuts:
    """Cut `pieces` (None: nothing) out of the array that holds `frame`."""
    flat: list[HostArray | None] = []
    copies: _Copies = []
    for index, piece in enumerate(pieces):
        view = None if piece is None else piece_of(array, piece, frame)
        if view is not None and not view.flags.c_contiguous:
            copies.append((view, scratch.get(f"{name}.{index}", view.shape, view.dtype)))
            view = copies[-1][1]
        flat.append(view)
    return Cuts(tuple(flat), copies)


def prepare(
    kind: ActKind,
    task: BoxingTask | TransferTask,
    rank: int,
    number: int,
    transport: Transport,
    source: HostArray | None,
    target: HostArray | None,
    scratch: Workspace,
    *,
    reduce: Reduce = Reduce.SUM,
) -> Start:
    """The act of `rank` in a boxing step or transfer, bound to the array it reads and the one it writes.

    Args:
        kind: what the act does; decides how a BoxingTask is read.
        task: groups and boxes; `source` has the shape of this rank's source box, `target` of its target box.
        rank: this rank.
        number: the rendezvous.
        transport: this rank's transport; unused by a slice.
        source: C-contiguous; None for a rank that only receives.
        target: C-contiguous; None for a rank that only sends.
        scratch: this actor's own.
        reduce: how partial terms combine.
    """
    if isinstance(task, TransferTask):
        return _transfer(task, rank, number, transport, source, target, scratch)
    assert source is not None
    assert target is not None
    part = _Part(task, task.group.index(rank), number, transport, source, target, scratch, reduce)
    return {
        ActKind.SLICE: _slice,
        ActKind.ALL_REDUCE: _all_reduce,
        ActKind.REDUCE_SCATTER: _reduce_scatter,
        ActKind.ALL_GATHER: _all_gather,
        ActKind.ALL_TO_ALL: _all_to_all,
    }[kind](part)


@dataclass(frozen=True, slots=True)
class _Part:
    """One rank's part of a boxing step; `me` is its index in the group."""

    task: BoxingTask
    me: int
    number: int
    transport: Transport
    source: HostArray
    target: HostArray
    scratch: Workspace
    reduce: Reduce

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

    def exchange(self, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]) -> Request:
        return self.transport.exchange(self.task.group, self.number, send, receive)

    def all_gather(self, send: HostArray | None, receive: Sequence[HostArray | None]) -> Request:
        return self.transport.all_gather(self.task.group, self.number, send, receive)


def _slice(part: _Part) -> Start:
    """B -> S keeps the rank's cut; B -> P keeps all on the group's first rank; S -> P puts the piece among zeros."""
    shared = intersect(part.frame, part.goal)
    assert shared is not None
    piece, place = piece_of(part.source, shared, part.frame), piece_of(part.target, shared, part.goal)
    keeps = part.frame != part.goal or part.me == 0
    fills = keeps and shared == part.goal

    def act() -> Requests:
        if not fills:
            part.target.fill(0)
        if keeps:
            np.copyto(place, piece)
        return iter(())

    return act


def _all_reduce(part: _Part) -> Start:
    """Exchange balanced flat pieces, combine the own one in rank order, gather the sums."""
    source, target = part.source.reshape(-1), part.target.reshape(-1)
    pieces = [slice(begin, end) for begin, end in balanced_split(0, source.size, len(part.task.group))]
    send = part.others([source[piece] for piece in pieces])
    terms = _terms(part, source[pieces[part.me]])
    sums = [target[piece] for piece in pieces]

    def act() -> Requests:
        yield part.exchange(send, terms[0])
        _combine(terms[1], sums[part.me], part.reduce)
        yield part.all_gather(sums[part.me], sums)

    return act


def _reduce_scatter(part: _Part) -> Start:
    """Send every rank its cut of the own term, combine what comes in rank order."""
    send = cut(part.source, part.frame, part.others(part.task.target_boxes), part.scratch, "send")
    terms = _terms(part, piece_of(part.source, part.goal, part.frame))

    def act() -> Requests:
        send.pack()
        yield part.exchange(send.flat, terms[0])
        _combine(terms[1], part.target, part.reduce)

    return act


def _all_gather(part: _Part) -> Start:
    """Everyone's piece, in its place."""
    place = piece_of(part.target, part.frame, part.goal)
    receive = cut(part.target, part.goal, part.task.source_boxes, part.scratch, "receive")
    in_place = place.flags.c_contiguous
    own = receive.flat[part.me] if in_place else part.source

    def act() -> Requests:
        if in_place:
            np.copyto(place, part.source)
        yield part.all_gather(own, receive.flat)
        receive.unpack()

    return act


def _all_to_all(part: _Part) -> Start:
    """Send every rank what it is to hold of the own piece; what stays is copied."""
    outgoing = part.others([intersect(part.frame, box) for box in part.task.target_boxes])
    incoming = part.others([intersect(box, part.goal) for box in part.task.source_boxes])
    send = cut(part.source, part.frame, outgoing, part.scratch, "send")
    receive = cut(part.target, part.goal, incoming, part.scratch, "receive")
    kept = intersect(part.frame, part.goal)

    def act() -> Requests:
        send.pack()
        request = part.exchange(send.flat, receive.flat)
        if kept is not None:
            np.copyto(piece_of(part.target, kept, part.goal), piece_of(part.source, kept, part.frame))
        yield request
        receive.unpack()

    return act


def _transfer(
    task: TransferTask,
    rank: int,
    number: int,
    transport: Transport,
    source: HostArray | None,
    target: HostArray | None,
    scratch: Workspace,
) -> Start:
    """Messages that leave or reach this rank, in the task's order; those to itself are copied."""
    leaving = [m for m in task.messages if m.source == rank and m.target != rank]
    coming = [m for m in task.messages if m.target == rank and m.source != rank]
    staying = [m.box for m in task.messages if m.source == m.target == rank]
    nothing = Cuts((), [])
    send, receive = nothing, nothing
    if source is not None:
        send = cut(source, task.source_boxes[rank], [m.box for m in leaving], scratch, "send")
    if target is not None:
        receive = cut(target, task.target_boxes[rank], [m.box for m in coming], scratch, "receive")
    kept: _Copies = []
    if source is not None and target is not None:
        frame, goal = task.source_boxes[rank], task.target_boxes[rank]
        kept = [(piece_of(target, box, goal), piece_of(source, box, frame)) for box in staying]

    def act() -> Requests:
        send.pack()
        requests = [transport.receive(m.source, number, _full(a)) for m, a in zip(coming, receive.flat, strict=True)]
        requests += [transport.send(m.target, number, _full(a)) for m, a in zip(leaving, send.flat, strict=True)]
        for into, piece in kept:
            np.copyto(into, piece)
        yield from requests
        receive.unpack()

    return act


def _full(array: HostArray | None) -> HostArray:
    assert array is not None
    return array


def _terms(part: _Part, own: HostArray) -> tuple[tuple[HostArray | None, ...], list[HostArray]]:
    """Where the others' terms of the own piece arrive, and all the terms in rank order."""
    ranks = range(len(part.task.group))
    arrive = tuple(None if i == part.me else part.scratch.get(f"term.{i}", own.shape, own.dtype) for i in ranks)
    return arrive, [own if array is None else array for array in arrive]


def _combine(terms: Sequence[HostArray], into: HostArray, reduce: Reduce) -> None:
    """Reduce in rank order: ((term 0 + term 1) + term 2) + ..."""
    combine = _COMBINE[reduce]
    if len(terms) == 1:
        np.copyto(into, terms[0])
        return
    combine(terms[0], terms[1], out=into)
    for term in terms[2:]:
        combine(into, term, out=into)
