"""Boxing and transfers on one rank: what moves is the transport's business, what it means is decided here.

A collective act is a generator of requests: it starts a movement, yields it until it is through, works on what
came, and starts the next; the worker polls in between and runs other streams meanwhile. `prepare` builds one for
given arrays once, so that an act itself looks nothing up and allocates nothing.

Cuts of an array that lie together in memory are sent and received in place; others go through scratch arrays that
are kept. Reductions are the library's own where the transport has one that adds up (`library_reductions`); else they
combine in one binary tree over the ranks (on two levels: within each node, then over the nodes), so their results are
bitwise the same on all ranks, transports and runs.

Bytes handed over to other ranks by the whole group, for p ranks and a tensor of T bytes that the group holds:

    all_reduce       P -> B        2 T (p - 1)      each rank 2 T (p - 1) / p where p divides the elements
    reduce_scatter   P -> S(d)     T (p - 1)        each rank T less its own target piece
    all_gather       S(d) -> B     T (p - 1)        each rank its own piece x (p - 1)
    all_to_all       S(i) -> S(j)  T (p - 1) / p    where both cuts are even; each rank its piece less what it keeps
    rotate           S(d) -> S(d)+1  T              each rank its own piece
    slice            B -> S, B -> P, S -> P: 0
    copy             to the rank's other memory: 0
    transfer         the boxes of the messages whose two ends are different ranks

Ragged tensors move as the rows that there are (`executor.runtime.ragged`).

Tasks with `nodes` take two levels (`executor.runtime.hierarchical`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from executor.runtime.hierarchical import TWO_LEVELS
from executor.runtime.library_reductions import library_reduction
from executor.runtime.neutral import neutral_element
from executor.runtime.partial_sums import PARTIAL, PartialSums
from executor.runtime.pieces import Copies, Cuts, Part, Requests, Start, cut, piece_of, terms_of
from executor.runtime.ragged import prepare_rows
from executor.runtime.transport.base import HostArray, Parcel, Transport
from strategy.base.errors import InternalError, present
from strategy.comm.rank_parts import incoming, outgoing
from strategy.graph.ops.scratch import Scratch
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import balanced_split
from strategy.sbp.tensor import intersect


def prepare(
    kind: ActKind,
    task: BoxingTask | TransferTask,
    rank: int,
    number: int,
    transport: Transport,
    source: HostArray | Rows | None,
    target: HostArray | Rows | None,
    scratch: Scratch,
    partial: PartialSums | None = None,
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
        partial: what is reduced, where that is not the source alone.
    """
    if isinstance(source, Rows) or isinstance(target, Rows):
        return prepare_rows(kind, task, rank, number, transport, _rows(source), _rows(target))
    if isinstance(task, TransferTask):
        return _transfer(task, rank, number, transport, source, target, scratch)
    part = Part(task, task.group.index(rank), number, transport, _full(source), _full(target), scratch)
    if partial is not None:
        return PARTIAL[kind](part, partial)
    return library_reduction(kind, part) or (TWO_LEVELS if task.nodes else _FLAT)[kind](part)


def _copy(part: Part) -> Start:
    """From one memory of the rank to its other."""

    def act() -> Requests:
        part.xp.copyto(part.target, part.source)
        return iter(())

    return act


def _slice(part: Part) -> Start:
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
            part.xp.copyto(place, piece)
        return iter(())

    return act


def _all_reduce(part: Part) -> Start:
    """Exchange balanced flat pieces, combine the own one, gather the sums."""
    source, target = part.source.reshape(-1), part.target.reshape(-1)
    pieces = [slice(begin, end) for begin, end in balanced_split(0, source.size, len(part.task.group))]
    send = Parcel(part.others([source[piece] for piece in pieces]))
    terms = terms_of(part, source[pieces[part.me]], range(len(pieces)))
    sums = [target[piece] for piece in pieces]
    gathered = Parcel(sums)
    combine = part.combiner(terms[1], sums[part.me])

    def act() -> Requests:
        yield part.exchange(send, terms[0])
        combine()
        yield part.all_gather(sums[part.me], gathered)

    return act


def _reduce_scatter(part: Part) -> Start:
    """Send every rank its cut of the own term, combine what comes."""
    send = cut(part.source, part.frame, part.others(part.task.target_boxes), part.scratch, "send")
    terms = terms_of(part, piece_of(part.source, part.goal, part.frame), range(len(part.task.group)))
    combine = part.combiner(terms[1], part.target)

    def act() -> Requests:
        send.pack()
        yield part.exchange(send.flat, terms[0])
        combine()

    return act


def _all_gather(part: Part) -> Start:
    """Everyone's piece, in its place."""
    place = piece_of(part.target, part.frame, part.goal)
    receive = cut(part.target, part.goal, part.task.source_boxes, part.scratch, "receive")
    in_place = place.flags.c_contiguous
    own = receive.flat[part.me] if in_place else part.source

    def act() -> Requests:
        if in_place:
            part.xp.copyto(place, part.source)
        yield part.all_gather(own, receive.flat)
        receive.unpack()

    return act


def _all_to_all(part: Part) -> Start:
    """Send every rank what it lacks and is to have from here; what stays is copied."""
    send = cut(part.source, part.frame, part.others(outgoing(part.task, part.me)), part.scratch, "send")
    receive = cut(part.target, part.goal, part.others(incoming(part.task, part.me)), part.scratch, "receive")
    kept = intersect(part.frame, part.goal)

    def act() -> Requests:
        send.pack()
        request = part.exchange(send.flat, receive.flat)
        if kept is not None:
            part.xp.copyto(piece_of(part.target, kept, part.goal), piece_of(part.source, kept, part.frame))
        yield request
        receive.unpack()

    return act


_FLAT: Mapping[ActKind, Callable[[Part], Start]] = {
    ActKind.COPY: _copy,
    ActKind.SLICE: _slice,
    ActKind.ALL_REDUCE: _all_reduce,
    ActKind.REDUCE_SCATTER: _reduce_scatter,
    ActKind.ALL_GATHER: _all_gather,
    ActKind.ALL_TO_ALL: _all_to_all,
    ActKind.ROTATE: _all_to_all,
}


def _transfer(
    task: TransferTask,
    rank: int,
    number: int,
    transport: Transport,
    source: HostArray | None,
    target: HostArray | None,
    scratch: Scratch,
) -> Start:
    """Messages that leave or reach this rank, in the task's order; those to itself are copied."""
    leaving = [m for m in task.messages if m.source == rank and m.target != rank]
    coming = [m for m in task.messages if m.target == rank and m.source != rank]
    staying = [m.box for m in task.messages if m.source == m.target == rank]
    nothing = Cuts(Parcel(), [], scratch.xp)
    send, receive = nothing, nothing
    if source is not None:
        send = cut(source, task.source_boxes[rank], [m.box for m in leaving], scratch, "send")
    if target is not None:
        receive = cut(target, task.target_boxes[rank], [m.box for m in coming], scratch, "receive")
    kept: Copies = []
    if staying:
        frame, goal = task.source_boxes[rank], task.target_boxes[rank]
        kept = [(piece_of(_full(target), box, goal), piece_of(_full(source), box, frame)) for box in staying]

    def act() -> Requests:
        send.pack()
        requests = [transport.receive(m.source, number, _full(a)) for m, a in zip(coming, receive.flat, strict=True)]
        requests += [transport.send(m.target, number, _full(a)) for m, a in zip(leaving, send.flat, strict=True)]
        for into, piece in kept:
            scratch.xp.copyto(into, piece)
        yield from requests
        receive.unpack()

    return act


def _full(array: HostArray | None) -> HostArray:
    return present(array, "the piece of a rank that takes part")


def _rows(piece: HostArray | Rows | None) -> Rows | None:
    if piece is None or isinstance(piece, Rows):
        return piece
    raise InternalError("one side of a conversion is ragged, the other is not")
