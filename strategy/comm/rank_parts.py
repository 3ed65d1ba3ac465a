"""One rank's part of a conversion: what it holds before and after a boxing step, gives and gets.

Of several replicas, a receiver takes its own copy if it holds one; else the replicas take turns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from strategy.base.errors import SbpError
from strategy.comm.boxing import BoxingStep
from strategy.program.program import BoxingTask, Message, TransferTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, P, Partial, format_nd, has_partial, local_boxes
from strategy.sbp.tensor import Box, TensorSpec, intersect


def boxing_task(spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement, rank: int) -> BoxingTask:
    """One rank's part of a step: its group, and who holds what before and after."""
    positions = placement.positions(rank, *step.axes)
    before = local_boxes(spec.shape, source, placement.mesh)
    after = local_boxes(spec.shape, step.target, placement.mesh)
    terms = next((sbp for a in step.axes for sbp in (source[a], step.target[a]) if isinstance(sbp, Partial)), P)
    return BoxingTask(
        tuple(placement.devices[position] for position in positions),
        tuple(before[position] for position in positions),
        tuple(after[position] for position in positions),
        terms.reduce,
    )


def dealer(holders: Sequence[int], receiver: int, position: int) -> int:
    """Who of the holders of equal pieces gives to a receiver: itself if it is one, else they take turns."""
    return receiver if receiver in holders else _in_turn(holders, position)


def _in_turn(holders: Sequence[int], position: int) -> int:
    return holders[position % len(holders)]


def outgoing(task: BoxingTask, me: int) -> list[Box | None]:
    """What the `me`-th rank of an all-to-all gives to each rank of the group, itself included."""
    own = task.source_boxes[me]
    holders = [index for index, box in enumerate(task.source_boxes) if box == own]
    return [
        intersect(own, wanted) if dealer(holders, receiver, receiver) == me else None
        for receiver, wanted in enumerate(task.target_boxes)
    ]


def incoming(task: BoxingTask, me: int) -> list[Box | None]:
    """What the `me`-th rank of an all-to-all gets from each rank of the group, itself included."""
    found: list[Box | None] = [None] * len(task.group)
    for box, holders in replicas(enumerate(task.source_boxes)).items():
        found[dealer(holders, me, me)] = intersect(box, task.target_boxes[me])
    return found


def replicas(held: Iterable[tuple[int, Box]]) -> dict[Box, list[int]]:
    """Distinct pieces, each with who holds it."""
    found: dict[Box, list[int]] = {}
    for holder, box in held:
        found.setdefault(box, []).append(holder)
    return found


def transfer_task(
    spec: TensorSpec, source: NdSbp, source_placement: Placement, target: NdSbp, target_placement: Placement
) -> TransferTask:
    """The messages that move a tensor between any two placements.

    Of several replicas, a receiver takes its own copy if it holds one, else the replica at its own position modulo
    their number, so that every replica sends about alike.

    Raises:
        SbpError: a side is partial.
    """
    if has_partial(source) or has_partial(target):
        raise SbpError("partial tensors do not travel", got=(format_nd(source), format_nd(target)))
    sides = ((source, source_placement), (target, target_placement))
    source_boxes, target_boxes = (
        dict(zip(placement.devices, local_boxes(spec.shape, layout, placement.mesh), strict=True))
        for layout, placement in sides
    )
    found = replicas(source_boxes.items())
    whole, holders = tuple(found), list(found.values())
    messages = []
    common = _common(whole, tuple(target_boxes.values()))
    for position, (receiver, pieces) in enumerate(zip(target_boxes, common, strict=True)):
        own = source_boxes.get(receiver)
        for piece, box in pieces:
            giver = receiver if own == whole[piece] else _in_turn(holders[piece], position)  # as `dealer` has it
            messages.append(Message(giver, receiver, box))
    return TransferTask(tuple(sorted(messages, key=lambda m: (m.source, m.target, m.box))), source_boxes, target_boxes)


@lru_cache(maxsize=256)
def _common(pieces: tuple[Box, ...], wanted: tuple[Box, ...]) -> tuple[tuple[tuple[int, Box], ...], ...]:
    """For each wanted box the pieces that it meets, each with what they share: the same between all alike stages."""
    near = _near(pieces)
    found: dict[Box, tuple[tuple[int, Box], ...]] = {}
    for one in dict.fromkeys(wanted):
        pairs = ((piece, intersect(pieces[piece], one)) for piece in near(one))
        found[one] = tuple((piece, shared) for piece, shared in pairs if shared is not None)
    return tuple(found[one] for one in wanted)


def _near(pieces: Sequence[Box]) -> Callable[[Box], Sequence[int]]:
    """Box -> the pieces that may meet it, in order, told by the dim along which they are cut into most parts."""
    every = range(len(pieces))
    cuts = [sorted(set(intervals)) for intervals in zip(*pieces, strict=True)]
    if not cuts:
        return lambda _: every
    dim = max(range(len(cuts)), key=lambda d: len(cuts[d]))
    begins, ends = zip(*cuts[dim], strict=True)
    if any(end > begin for end, begin in zip(ends, begins[1:], strict=False)):  # they overlap
        return lambda _: every
    members: dict[tuple[int, int], list[int]] = {}
    for piece, box in enumerate(pieces):
        members.setdefault(box[dim], []).append(piece)

    def near(box: Box) -> Sequence[int]:
        begin, end = box[dim]
        met = cuts[dim][bisect_right(ends, begin) : bisect_left(begins, end)]
        return sorted(piece for interval in met for piece in members[interval])

    return near


def meeting_ranks(messages: Sequence[Message]) -> list[tuple[int, ...]]:
    """Ranks that must meet, as the connected components of the message graph: each is one rendezvous."""
    parent: dict[int, int] = {}

    def root(rank: int) -> int:
        while parent.setdefault(rank, rank) != rank:
            rank = parent[rank]
        return rank

    for message in messages:
        parent[max(root(message.source), root(message.target))] = min(root(message.source), root(message.target))
    components: dict[int, list[int]] = {}
    for rank in sorted(parent):
        components.setdefault(root(rank), []).append(rank)
    return [tuple(ranks) for _, ranks in sorted(components.items())]
