"""Reductions of what are several nodes on a rank: each is sent, and all are combined in their tree.

    6 micro-batches on each of 2 ranks      rank 0: (0 .. 3) (4 5)      rank 1: (6 7) (8 .. 11)
    the sum                                 ((0 .. 3) ((4 5) (6 7))) (8 .. 11)

There is one exchange for each node that some rank has, and then what other reductions do once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from executor.runtime.pieces import Part, Requests, Start, cut, piece_of
from executor.runtime.summation_tree import Node
from executor.runtime.transport.base import HostArray, Parcel
from strategy.program.program import ActKind
from strategy.sbp.sbp import balanced_split


@dataclass(frozen=True, slots=True)
class PartialSums:
    """What one rank has of the sum that a group is to add up.

    Attributes:
        sources: the sums of its nodes, each like the source of the act.
        nodes: those of every rank of the group, in the group's order.
        total: leaves of the tree.
    """

    sources: Sequence[HostArray]
    nodes: Sequence[Sequence[Node]]
    total: int


def _collected(
    part: Part, partial: PartialSums, own: Sequence[HostArray]
) -> tuple[list[Parcel], Mapping[Node, HostArray]]:
    """Where other ranks' terms of the own piece arrive, exchange after exchange, and all terms."""
    terms = dict(zip(partial.nodes[part.me], own, strict=True))
    receive: list[Parcel] = []
    for at in range(max(map(len, partial.nodes))):
        arrays: list[HostArray | None] = []
        for rank, nodes in enumerate(partial.nodes):
            comes = rank != part.me and at < len(nodes)
            arrays.append(part.scratch.get(f"term {at}.{rank}", own[0].shape, own[0].dtype) if comes else None)
            if arrays[-1] is not None:
                terms[nodes[at]] = arrays[-1]
        receive.append(Parcel(arrays))
    return receive, terms


def _padded(send: Sequence[Parcel], receive: Sequence[Parcel]) -> list[Parcel]:
    """As many as come: nothing is sent when all own nodes are."""
    nothing = [Parcel([None] * len(coming)) for coming in receive[len(send) :]]
    return [*send, *nothing]


def _all_reduce(part: Part, partial: PartialSums) -> Start:
    target = part.target.reshape(-1)
    pieces = [slice(begin, end) for begin, end in balanced_split(0, target.size, len(part.task.group))]
    flat = [source.reshape(-1) for source in partial.sources]
    receive, terms = _collected(part, partial, [source[pieces[part.me]] for source in flat])
    send = _padded([Parcel(part.others([source[piece] for piece in pieces])) for source in flat], receive)
    sums = [target[piece] for piece in pieces]
    gathered = Parcel(sums)
    combine = part.tree_combiner(terms, partial.total, sums[part.me])

    def act() -> Requests:
        for leaving, coming in zip(send, receive, strict=True):
            yield part.exchange(leaving, coming)
        combine()
        yield part.all_gather(sums[part.me], gathered)

    return act


def _reduce_scatter(part: Part, partial: PartialSums) -> Start:
    wanted = part.others(part.task.target_boxes)
    cuts = [cut(source, part.frame, wanted, part.scratch, f"send {at}") for at, source in enumerate(partial.sources)]
    own = [piece_of(source, part.goal, part.frame) for source in partial.sources]
    receive, terms = _collected(part, partial, own)
    send = _padded([one.flat for one in cuts], receive)
    combine = part.tree_combiner(terms, partial.total, part.target)

    def act() -> Requests:
        for one in cuts:
            one.pack()
        for leaving, coming in zip(send, receive, strict=True):
            yield part.exchange(leaving, coming)
        combine()

    return act


PARTIAL: Mapping[ActKind, Callable[[Part, PartialSums], Start]] = {
    ActKind.ALL_REDUCE: _all_reduce,
    ActKind.REDUCE_SCATTER: _reduce_scatter,
}
