"""Boxing and transfers on one rank: what moves is the transport's business, what it means is decided here.

A collective act is a generator of requests: it starts a movement, yields it until it is through, works on what
came, and starts the next; the worker polls in between and runs other streams meanwhile. `prepare` builds one for
given arrays once, so that an act itself looks nothing up and allocates nothing.

Cuts of an array that lie together in memory are sent and received in place; others go through scratch arrays that
are kept. Reductions combine in rank order (on two levels: within each node, then over the nodes), so their results are
bitwise the same on all ranks, transports and runs.

Bytes handed over to other ranks by the whole group, for p ranks and a tensor of T bytes that the group holds:

    all_reduce       P -> B        2 T (p - 1)      each rank 2 T (p - 1) / p where p divides the elements
    reduce_scatter   P -> S(d)     T (p - 1)        each rank T less its own target piece
    all_gather       S(d) -> B     T (p - 1)        each rank its own piece x (p - 1)
    all_to_all       S(i) -> S(j)  T (p - 1) / p    where both cuts are even; each rank its piece less what it keeps
    rotate           S(d) -> S(d)+1   T                each rank its own piece
    slice            B -> S, B -> P, S -> P: 0
    transfer         the boxes of the messages whose two ends are different ranks

Ragged tensors move as the rows that there are (`executor.ragged`).

Tasks with `nodes` take two levels: `strategy.levels` says what is sent in which part. All parts travel in the lane of
the whole group, in which nothing is handed to ranks that a part does not join.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from executor.neutral import neutral_element
from executor.ragged import prepare_rows
from executor.transport.base import HostArray, Request, Transport
from strategy.boxing import incoming, outgoing
from strategy.levels import box_size, counterparts, place_in
from strategy.ops.base import Workspace
from strategy.program import ActKind, BoxingTask, TransferTask
from strategy.rows import Rows
from strategy.sbp import Reduce, balanced_split
from strategy.tensor import Box, box_shape, intersect, within

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
    source: HostArray | Rows | None,
    target: HostArray | Rows | None,
    scratch: Workspace,
) -> Start:
    """The act of `rank` in a boxing step or transfer, bound to the array, or ragged rows, it reads and writes.

    Args:
        kind: what the act does; decides how a BoxingTask is read.
        task: groups and boxes; `source` has the shape of this rank's source box, `target` of its target box.
        rank: this rank.
        number: the rendezvous.
        transport: this rank's transport; unused by a slice.
        source: C-contiguous; None for a rank that only receives.
        target: C-contiguous; None for a rank that only sends.
        scratch: this actor's own.
    """
    if isinstance(source, Rows) or isinstance(target, Rows):
        assert not isinstance(source, np.ndarray)
        assert not isinstance(target, np.ndarray)
        return prepare_rows(kind, task, rank, number, transport, source, target)
    if isinstance(task, TransferTask):
        return _transfer(task, rank, number, transport, source, target, scratch)
    assert source is not None
    assert target is not None
    part = _Part(task, task.group.index(rank), number, transport, source, target, scratch)
    return (_TWO_LEVELS if task.nodes else _FLAT)[kind](part)


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

    def spread(self, positions: Sequence[int], arrays: Sequence[HostArray]) -> tuple[HostArray | None, ...]:
        """One array per rank of the group: those given at their positions, nothing for others and for this rank."""
        placed = dict(zip(positions, arrays, strict=True))
        return tuple(None if index == self.me else placed.get(index) for index in range(len(self.task.group)))

    def exchange(self, send: Sequence[HostArray | None], receive: Sequence[HostArray | None]) -> Request:
        return self.transport.exchange(self.task.group, self.number, send, receive)

    def all_gather(self, send: HostArray | None, receive: Sequence[HostArray | None]) -> Request:
        return self.transport.all_gather(self.task.group, self.number, send, receive)


def _slice(part: _Part) -> Start:
    """B -> S keeps the rank's cut; B -> P keeps all on the group's first rank; S -> P puts the piece among neutrals.

    What is owned by another rank is empty here: B -> O keeps nothing of it, O -> P holds neutrals alone.
    """
    shared = intersect(part.frame, part.goal)
    terms = all(box == part.goal for box in part.task.target_boxes)
    keeps = shared is not None and not (terms and part.frame in part.task.source_boxes[: part.me])
    piece, place = part.source, part.target
    if shared is not None:
        piece, place = piece_of(piece, shared, part.frame), piece_of(place, shared, part.goal)
    fills = keeps and shared == part.goal
    neutral = neutral_element(part.target.dtype, part.task.reduce)

    def act() -> Requests:
        if not fills:
            part.target.fill(neutral)
        if keeps:
            np.copyto(place, piece)
        return iter(())

    return act


def _all_reduce(part: _Part) -> Start:
    """Exchange balanced flat pieces, combine the own one in rank order, gather the sums."""
    source, target = part.source.reshape(-1), part.target.reshape(-1)
    pieces = [slice(begin, end) for begin, end in balanced_split(0, source.size, len(part.task.group))]
    send = part.others([source[piece] for piece in pieces])
    terms = _terms(part, source[pieces[part.me]], range(len(pieces)))
    sums = [target[piece] for piece in pieces]

    def act() -> Requests:
        yield part.exchange(send, terms[0])
        _combine(terms[1], sums[part.me], part.task.reduce)
        yield part.all_gather(sums[part.me], sums)

    return act


def _reduce_scatter(part: _Part) -> Start:
    """Send every rank its cut of the own term, combine what comes in rank order."""
    send = cut(part.source, part.frame, part.others(part.task.target_boxes), part.scratch, "send")
    terms = _terms(part, piece_of(part.source, part.goal, part.frame), range(len(part.task.group)))

    def act() -> Requests:
        send.pack()
        yield part.exchange(send.flat, terms[0])
        _combine(terms[1], part.target, part.task.reduce)

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
    """Send every rank what it lacks and is to have from here; what stays is copied."""
    send = cut(part.source, part.frame, part.others(outgoing(part.task, part.me)), part.scratch, "send")
    receive = cut(part.target, part.goal, part.others(incoming(part.task, part.me)), part.scratch, "receive")
    kept = intersect(part.frame, part.goal)

    def act() -> Requests:
        send.pack()
        request = part.exchange(send.flat, receive.flat)
        if kept is not None:
            np.copyto(piece_of(part.target, kept, part.goal), piece_of(part.source, kept, part.frame))
        yield request
        receive.unpack()

    return act


@dataclass(frozen=True, slots=True)
class _Levels:
    """Who this rank works with in an act on two levels, by position in the group.

    `mates` are the ranks of its node, of which it is the one at `place`; `peers` those at the same place of all nodes,
    of which it is the one at `node`.
    """

    node: int
    place: int
    mates: tuple[int, ...]
    peers: tuple[int, ...]


def _levels(part: _Part) -> _Levels:
    task = part.task
    node, place = place_in(task.nodes, task.group[part.me])
    return _Levels(node, place, tuple(map(task.group.index, task.nodes[node])), counterparts(task, place))


def _two_level_all_reduce(part: _Part) -> Start:
    """Combine a flat piece inside the node and a part of it between nodes; gather both the same way back."""
    at = _levels(part)
    source, target = part.source.reshape(-1), part.target.reshape(-1)
    pieces = [slice(*cut) for cut in balanced_split(0, source.size, len(at.mates))]
    mine = pieces[at.place]
    parts = [slice(*cut) for cut in balanced_split(mine.start, mine.stop, len(at.peers))]
    piece, total = target[mine], target[parts[at.node]]
    own = part.scratch.get("own", total.shape, total.dtype)
    terms, sums = _terms(part, source[mine], at.mates), _terms(part, own, at.peers, "sum")
    inside = part.spread(at.mates, [source[p] for p in pieces])
    between = part.spread(at.peers, [target[p] for p in parts])
    gathered = part.spread(at.mates, [target[p] for p in pieces])
    totals, whole = part.spread(at.peers, [total] * len(parts)), part.spread(at.mates, [piece] * len(pieces))

    def act() -> Requests:
        yield part.exchange(inside, terms[0])
        _combine(terms[1], piece, part.task.reduce)
        np.copyto(own, total)
        yield part.exchange(between, sums[0])
        _combine(sums[1], total, part.task.reduce)
        yield part.exchange(totals, between)
        yield part.exchange(whole, gathered)

    return act


def _two_level_reduce_scatter(part: _Part) -> Start:
    """Combine inside the node what the ranks at one place of all nodes are to have; between nodes, the own target."""
    at, task = _levels(part), part.task
    wanted = [[task.target_boxes[p] for p in counterparts(task, place)] for place in range(len(at.mates))]
    bundles = [_bundle(part, part.source, part.frame, boxes, f"for.{j}") for j, boxes in enumerate(wanted)]
    memory = bundles[at.place][0]
    combined = part.scratch.get("combined", memory.shape, memory.dtype)
    sections = _sections(combined, wanted[at.place])
    terms, sums = _terms(part, memory, at.mates), _terms(part, sections[at.node], at.peers, "sum")
    inside, between = part.spread(at.mates, [memory for memory, _ in bundles]), part.spread(at.peers, sections)

    def act() -> Requests:
        for _, copies in bundles:
            for piece, place in copies:
                np.copyto(place, piece)
        yield part.exchange(inside, terms[0])
        _combine(terms[1], combined, task.reduce)
        yield part.exchange(between, sums[0])
        _combine(sums[1], part.target, task.reduce)

    return act


def _two_level_all_gather(part: _Part) -> Start:
    """Gather between nodes the pieces of the ranks at one place; inside the node, those of all places."""
    at, task = _levels(part), part.task
    held = [[task.source_boxes[p] for p in counterparts(task, place)] for place in range(len(at.mates))]
    bundles = [_bundle(part, part.target, part.goal, boxes, f"of.{j}") for j, boxes in enumerate(held)]
    memory = bundles[at.place][0]
    sections = _sections(memory, held[at.place])
    leaving, coming = part.spread(at.peers, [part.source] * len(sections)), part.spread(at.peers, sections)
    bundled = part.spread(at.mates, [memory] * len(bundles)), part.spread(at.mates, [memory for memory, _ in bundles])

    def act() -> Requests:
        np.copyto(sections[at.node], part.source)
        yield part.exchange(leaving, coming)
        yield part.exchange(*bundled)
        for _, copies in bundles:
            for piece, place in copies:
                np.copyto(piece, place)

    return act


def _bundle(part: _Part, array: HostArray, frame: Box, pieces: Sequence[Box], name: str) -> tuple[HostArray, _Copies]:
    """Memory for pieces one after another, and (piece of the array, its place in that memory) pairs."""
    views = [piece_of(array, piece, frame) for piece in pieces]
    memory = part.scratch.get(name, (sum(view.size for view in views),), array.dtype)
    return memory, list(zip(views, _sections(memory, pieces), strict=True))


def _sections(memory: HostArray, pieces: Sequence[Box]) -> list[HostArray]:
    """Views of the pieces that lie in memory one after another."""
    cuts = itertools.pairwise(itertools.accumulate(map(box_size, pieces), initial=0))
    return [memory[slice(*cut)].reshape(box_shape(piece)) for cut, piece in zip(cuts, pieces, strict=True)]


_FLAT: Mapping[ActKind, Callable[[_Part], Start]] = {
    ActKind.SLICE: _slice,
    ActKind.ALL_REDUCE: _all_reduce,
    ActKind.REDUCE_SCATTER: _reduce_scatter,
    ActKind.ALL_GATHER: _all_gather,
    ActKind.ALL_TO_ALL: _all_to_all,
    ActKind.ROTATE: _all_to_all,
}
_TWO_LEVELS: Mapping[ActKind, Callable[[_Part], Start]] = {
    ActKind.ALL_REDUCE: _two_level_all_reduce,
    ActKind.REDUCE_SCATTER: _two_level_reduce_scatter,
    ActKind.ALL_GATHER: _two_level_all_gather,
}


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
    if staying:
        frame, goal = task.source_boxes[rank], task.target_boxes[rank]
        kept = [(piece_of(_full(target), box, goal), piece_of(_full(source), box, frame)) for box in staying]

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


def _terms(
    part: _Part, own: HostArray, positions: Sequence[int], name: str = "term"
) -> tuple[tuple[HostArray | None, ...], list[HostArray]]:
    """Where the terms of the own piece from other positions of the group arrive, and all the terms in their order."""
    terms = [own if i == part.me else part.scratch.get(f"{name}.{i}", own.shape, own.dtype) for i in positions]
    return part.spread(positions, terms), terms


def _combine(terms: Sequence[HostArray], into: HostArray, reduce: Reduce) -> None:
    """Reduce in rank order: ((term 0 + term 1) + term 2) + ..."""
    combine = _COMBINE[reduce]
    if len(terms) == 1:
        np.copyto(into, terms[0])
        return
    combine(terms[0], terms[1], out=into)
    for term in terms[2:]:
        combine(into, term, out=into)
