r"""Boxing: how a tensor passes from one layout to another.

On one placement, a conversion is a chain of steps, each a change along one mesh axis:

    from \\ to   S(j)             B            P
    S(i)        all-to-all       all-gather   slice: own piece in a tensor of zeros
    B           slice            -            slice: the first rank keeps it, the others hold zeros
    P           reduce-scatter   all-reduce   -

Splits nest (see `sbp`), so a split of dim d along an axis can be made or undone only while no later axis splits d.
Between placements, a tensor without partial terms moves by messages, each the overlap of what one rank holds with what
another needs; the chain converts before and after that transfer where this is cheaper or where terms are partial.

Bytes sent, over all p ranks of a group that holds a tensor of T bytes: all-gather T(p-1), reduce-scatter T(p-1),
all-reduce 2T(p-1), all-to-all T(p-1)/p, slice 0 (OneFlow, Yuan et al. 2021, table 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strategy.errors import SbpError
from strategy.placement import Placement
from strategy.program import ActKind, BoxingTask, Message, TransferTask
from strategy.sbp import (
    B,
    Broadcast,
    NdSbp,
    P,
    Partial,
    Sbp,
    Split,
    balanced_split,
    format_nd,
    has_partial,
    is_legal_layout,
    local_box,
)
from strategy.tensor import Shape, TensorSpec, box_shape, intersect

TRANSFER_AXIS = -1


@dataclass(frozen=True, slots=True)
class BoxingStep:
    """One step of a conversion: along `axis` (a transfer has none), after which the layout is `target`."""

    kind: ActKind
    axis: int
    target: NdSbp


Price = Callable[[ActKind, int, TensorSpec, NdSbp, NdSbp], float]
"""(kind, axis, spec, source, target) -> seconds of one step on the placement that the price belongs to."""

_KINDS: dict[tuple[type[Sbp], type[Sbp]], ActKind] = {
    (Split, Split): ActKind.ALL_TO_ALL,
    (Split, Broadcast): ActKind.ALL_GATHER,
    (Split, Partial): ActKind.SLICE,
    (Broadcast, Split): ActKind.SLICE,
    (Broadcast, Partial): ActKind.SLICE,
    (Partial, Split): ActKind.REDUCE_SCATTER,
    (Partial, Broadcast): ActKind.ALL_REDUCE,
}


def step_kind(source: NdSbp, target: NdSbp, axis: int) -> ActKind | None:
    """What changes `source` into `target` along `axis`; None where that is no single legal step."""
    if any(a != b for i, (a, b) in enumerate(zip(source, target, strict=True)) if i != axis):
        return None
    before, after = source[axis], target[axis]
    if before == after:
        return None
    touched = {sbp.dim for sbp in (before, after) if isinstance(sbp, Split)}
    if any(isinstance(later, Split) and later.dim in touched for later in source[axis + 1 :]):
        return None
    return _KINDS.get((type(before), type(after)))


def layouts_of(spec: TensorSpec, mesh: Shape, *, partial: bool = True) -> list[NdSbp]:
    """Every legal layout of a tensor on a mesh; an axis of one rank is always B."""
    options: list[Sbp] = [B, *(Split(d) for d in range(len(spec.shape)))]
    if partial and spec.dtype.is_float:
        options.append(P)
    per_axis = [options if parts > 1 else [B] for parts in mesh]
    return [nd for nd in itertools.product(*per_axis) if is_legal_layout(spec.shape, nd, mesh)]


@dataclass(slots=True)
class Boxing:
    """All conversions of tensors on one placement, priced: shortest paths over layouts (Floyd 1962, Warshall 1962)."""

    placement: Placement
    price: Price
    tables: dict[TensorSpec, _Table] = field(default_factory=dict)

    def seconds(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> float:
        """Price of the cheapest chain; infinite where there is none."""
        table = self._table(spec)
        return float(table.seconds[table.index[source], table.index[target]])

    def chain(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> tuple[BoxingStep, ...]:
        """The cheapest chain of steps.

        Raises:
            SbpError: no chain leads there.
        """
        table = self._table(spec)
        here, there = table.index[source], table.index[target]
        if not np.isfinite(table.seconds[here, there]):
            raise SbpError("no boxing leads there", got=f"{format_nd(source)} to {format_nd(target)} of {spec.shape}")
        steps = []
        while here != there:
            following = int(table.following[here, there])
            steps.append(table.steps[here, following])
            here = following
        return tuple(steps)

    def _table(self, spec: TensorSpec) -> _Table:
        found = self.tables.get(spec)
        if found is None:
            found = self.tables[spec] = _price_all(spec, self.placement.mesh, self.price)
        return found


@dataclass(frozen=True, slots=True)
class _Table:
    index: dict[NdSbp, int]
    steps: dict[tuple[int, int], BoxingStep]
    seconds: npt.NDArray[np.float64]
    following: npt.NDArray[np.int64]


def _price_all(spec: TensorSpec, mesh: Shape, price: Price) -> _Table:
    layouts = layouts_of(spec, mesh)
    count = len(layouts)
    seconds = np.full((count, count), np.inf)
    np.fill_diagonal(seconds, 0.0)
    following = np.tile(np.arange(count), (count, 1))
    steps: dict[tuple[int, int], BoxingStep] = {}
    for i, source in enumerate(layouts):
        for j, target in enumerate(layouts):
            changed = [a for a in range(len(mesh)) if source[a] != target[a]]
            kind = step_kind(source, target, changed[0]) if len(changed) == 1 else None
            if kind is not None:
                seconds[i, j] = price(kind, changed[0], spec, source, target)
                steps[i, j] = BoxingStep(kind, changed[0], target)
    for via in range(count):
        through = seconds[:, via, None] + seconds[None, via, :]
        shorter = through < seconds
        seconds[shorter] = through[shorter]
        following[shorter] = np.broadcast_to(following[:, via, None], following.shape)[shorter]
    return _Table({nd: i for i, nd in enumerate(layouts)}, steps, seconds, following)


def boxing_task(spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement, rank: int) -> BoxingTask:
    """One rank's part of a step: its group, and who holds what before and after."""
    group = placement.group(rank, step.axis)
    coords = [placement.coords(member) for member in group]
    return BoxingTask(
        group,
        tuple(local_box(spec.shape, source, placement.mesh, c) for c in coords),
        tuple(local_box(spec.shape, step.target, placement.mesh, c) for c in coords),
    )


def transfer_task(
    spec: TensorSpec, source: NdSbp, source_placement: Placement, target: NdSbp, target_placement: Placement
) -> TransferTask:
    """The messages that move a tensor between placements.

    Of several replicas, a receiver takes its own copy if it holds one, else the replica at its own position modulo
    their number, so that every replica sends about alike.

    Raises:
        SbpError: a side is partial.
    """
    if has_partial(source) or has_partial(target):
        raise SbpError("partial tensors do not travel", got=(format_nd(source), format_nd(target)))
    source_boxes = {
        r: local_box(spec.shape, source, source_placement.mesh, source_placement.coords(r))
        for r in source_placement.devices
    }
    target_boxes = {
        r: local_box(spec.shape, target, target_placement.mesh, target_placement.coords(r))
        for r in target_placement.devices
    }
    replicas: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank, box in source_boxes.items():
        replicas.setdefault(box, []).append(rank)
    messages = []
    for position, (receiver, wanted) in enumerate(target_boxes.items()):
        for box, holders in replicas.items():
            shared = intersect(box, wanted)
            if shared is not None or not box:
                sender = receiver if receiver in holders else holders[position % len(holders)]
                messages.append(Message(sender, receiver, shared or ()))
    return TransferTask(tuple(sorted(messages, key=lambda m: (m.source, m.target, m.box))), source_boxes, target_boxes)


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


def sent_nbytes(kind: ActKind, task: BoxingTask | TransferTask, rank: int, itemsize: int) -> int:
    """Bytes that `rank` sends to other ranks in one act."""
    if isinstance(task, TransferTask):
        return sum(_size(box_shape(m.box)) for m in task.messages if m.source == rank != m.target) * itemsize
    me, others = task.group.index(rank), len(task.group) - 1
    own = _size(box_shape(task.source_boxes[me]))
    if kind is ActKind.ALL_GATHER:
        return own * others * itemsize
    if kind is ActKind.REDUCE_SCATTER:
        return (own - _size(box_shape(task.target_boxes[me]))) * itemsize
    if kind is ActKind.ALL_REDUCE:
        begin, end = balanced_split(0, own, others + 1)[me]
        return (own - (end - begin) + (end - begin) * others) * itemsize
    if kind is ActKind.ALL_TO_ALL:
        overlaps = (intersect(task.source_boxes[me], box) for i, box in enumerate(task.target_boxes) if i != me)
        return sum(_size(box_shape(box)) for box in overlaps if box is not None) * itemsize
    return 0


def _size(shape: Shape) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size
